"""Pipelines of stock diffusers classes with a million random weights or fewer, made offline in less than a second each.

`build(kind, directory)` writes one as `save_pretrained` does, so that it loads as a published model would. All of them
are fast at 64x64 pixels (5 frames, half a second of sound). Equal kinds have equal weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from app.engines.diffusion.vision_processor import ImageProcessor
from tests import tiny_text


def build(kind: str, directory: Path) -> Path:
    """Write the pipeline `kind` (a key of KINDS) into `directory`, and return that."""
    torch.manual_seed(0)
    pipe = KINDS[kind]()
    pipe.save_pretrained(directory)
    if isinstance(pipe.components.get("processor"), ImageProcessor):
        _name_stock_processor(directory / "model_index.json")
    return directory


def open_pipeline(directory: Path, **arguments: Any) -> Any:
    """The pipeline in `directory` as diffusers itself loads it, without its progress bar."""
    if "Qwen2VLProcessor" in (directory / "model_index.json").read_text():
        arguments |= {"processor": ImageProcessor.from_pretrained(directory / "processor")}
    pipe = diffusers.DiffusionPipeline.from_pretrained(directory, local_files_only=True, **arguments)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _name_stock_processor(index: Path) -> None:
    """As the published models have it, which were saved where torchvision was."""
    content = json.loads(index.read_text())
    content["processor"] = ["transformers", "Qwen2VLProcessor"]
    index.write_text(json.dumps(content, indent=2))


def stable_diffusion() -> Any:
    tokenizer = tiny_text.clip_tokenizer()
    return diffusers.StableDiffusionPipeline(
        vae=_kl_autoencoder(),
        text_encoder=tiny_text.clip_encoder(tokenizer),
        tokenizer=tokenizer,
        unet=_unet(cross_attention_dim=32, attention_head_dim=4),
        scheduler=diffusers.DDIMScheduler(**_NOISE, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def stable_diffusion_xl() -> Any:
    tokenizer = tiny_text.clip_tokenizer()
    unet = _unet(
        cross_attention_dim=64,
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + 32,
    )
    return diffusers.StableDiffusionXLPipeline(
        vae=_kl_autoencoder(),
        text_encoder=tiny_text.clip_encoder(tokenizer),
        text_encoder_2=tiny_text.clip_encoder(tokenizer, projection=32),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(**_NOISE, timestep_spacing="leading", steps_offset=1),
        add_watermarker=False,
    )


def stable_diffusion_3() -> Any:
    """16 channels of latents, as published: its inpainting asks for that."""
    clip, t5 = tiny_text.clip_tokenizer(), tiny_text.t5_tokenizer()
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=16,
        pos_embed_max_size=64,
        qk_norm="rms_norm",
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_kl_autoencoder(latent_channels=16, scaling_factor=1.5, shift_factor=0.06),
        text_encoder=tiny_text.clip_encoder(clip, projection=32),
        tokenizer=clip,
        text_encoder_2=tiny_text.clip_encoder(clip, projection=32),
        tokenizer_2=clip,
        text_encoder_3=tiny_text.t5_encoder(t5, 64),
        tokenizer_3=t5,
    )


def flux() -> Any:
    clip, t5 = tiny_text.clip_tokenizer(), tiny_text.t5_tokenizer(512)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
        guidance_embeds=True,
    )
    return diffusers.FluxPipeline(
        transformer=transformer,
        scheduler=_dynamic_flow(base_shift=0.5, max_shift=1.15, max_image_seq_len=4096),
        vae=_kl_autoencoder(scaling_factor=0.36, shift_factor=0.11),
        text_encoder=tiny_text.clip_encoder(clip),
        tokenizer=clip,
        text_encoder_2=tiny_text.t5_encoder(t5),
        tokenizer_2=t5,
    )


def flux2_klein() -> Any:
    """Its call needs `text_encoder_out_layers=(1, 2, 3)`: the published text encoder is deeper."""
    tokenizer = tiny_text.qwen_tokenizer()
    vae = diffusers.AutoencoderKLFlux2(
        **_kl_blocks((8, 16, 16, 16)), latent_channels=4, norm_num_groups=4, mid_block_add_attention=False
    )
    transformer = diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=96,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    return diffusers.Flux2KleinPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=tiny_text.qwen3_encoder(tokenizer, with_head=True),
        tokenizer=tokenizer,
        transformer=transformer,
        is_distilled=False,
    )


def qwen_image() -> Any:
    return diffusers.QwenImagePipeline(**_qwen_parts())


def qwen_image_edit() -> Any:
    """Slow (seconds): the pipeline itself brings every input to an area of 1024x1024 pixels."""
    parts = _qwen_parts()
    pixels = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 16}
    processor = ImageProcessor(transformers.Qwen2VLImageProcessorPil(**pixels), parts["tokenizer"])
    return diffusers.QwenImageEditPipeline(**parts, processor=processor)


def z_image() -> Any:
    tokenizer = tiny_text.qwen_tokenizer()
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=32,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    return diffusers.ZImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_kl_autoencoder(scaling_factor=0.36, shift_factor=0.11),
        text_encoder=tiny_text.qwen3_encoder(tokenizer, with_head=False),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def wan() -> Any:
    return diffusers.WanPipeline(transformer=_wan_transformer(), **_wan_parts())


def wan_two() -> Any:
    """As Wan 2.2: one transformer for high noise, one for low noise."""
    return diffusers.WanPipeline(
        transformer=_wan_transformer(), transformer_2=_wan_transformer(), boundary_ratio=0.875, **_wan_parts()
    )


def wan_image_to_video() -> Any:
    """As Wan 2.2 TI2V: no encoder of pictures, a picture is the first frame; patches of 2 x 2 pixels are decoded."""
    return _wan_of_both(diffusers.WanImageToVideoPipeline)


def wan_of_both() -> Any:
    """The same as its checkpoint names it: it draws from text, too."""
    return _wan_of_both(diffusers.WanPipeline)


def _wan_of_both(cls: Any) -> Any:
    patches = {"in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16, "is_residual": True}
    vae = diffusers.AutoencoderKLWan(**_causal_blocks(8), **patches)
    return cls(transformer=_wan_transformer(), expand_timesteps=True, **_wan_parts() | {"vae": vae})


def cogvideox() -> Any:
    tokenizer = tiny_text.t5_tokenizer(226)
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=32,
        num_layers=2,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        patch_size=2,
    )
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        sample_height=64,
        sample_width=64,
    )
    return diffusers.CogVideoXPipeline(
        tokenizer=tokenizer,
        text_encoder=tiny_text.t5_encoder(tokenizer),
        vae=vae,
        transformer=transformer,
        scheduler=diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True),
    )


def stable_audio() -> Any:
    tokenizer = tiny_text.t5_tokenizer(32)
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4, 4, 8],
        channel_multiples=[1, 2, 2, 4],
        decoder_channels=8,
        decoder_input_channels=8,
        audio_channels=2,
        sampling_rate=16000,
    )
    transformer = diffusers.StableAudioDiTModel(
        sample_size=128,
        in_channels=8,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        num_key_value_attention_heads=2,
        out_channels=8,
        cross_attention_dim=32,
        time_proj_dim=32,
        global_states_input_dim=64,
        cross_attention_input_dim=32,
    )
    return diffusers.StableAudioPipeline(
        vae=vae,
        text_encoder=tiny_text.t5_encoder(tokenizer),
        projection_model=diffusers.StableAudioProjectionModel(
            text_encoder_dim=32, conditioning_dim=32, min_value=0, max_value=32
        ),
        tokenizer=tokenizer,
        transformer=transformer,
        scheduler=diffusers.EDMDPMSolverMultistepScheduler(
            solver_order=2,
            prediction_type="v_prediction",
            sigma_data=1.0,
            sigma_schedule="exponential",
            sigma_min=0.3,
            sigma_max=500,
        ),
    )


def glm_image() -> Any:
    """Its language model writes any of 64 picture tokens and no end, so that each picture has all that it needs."""
    tokenizer, glyphs = tiny_text.glm_image_tokenizer(), transformers.ByT5Tokenizer()
    template = "{% for message in messages %}{{ message['content'][0]['text'] }}{% endfor %}"
    return diffusers.GlmImagePipeline(
        tokenizer=glyphs,
        processor=transformers.GlmImageProcessor(
            transformers.GlmImageImageProcessorPil(patch_size=16, merge_size=1), tokenizer, chat_template=template
        ),
        text_encoder=tiny_text.t5_encoder(glyphs),
        vision_language_encoder=transformers.GlmImageForConditionalGeneration(_glm_image_config(tokenizer)),
        vae=_kl_autoencoder(latents_mean=[0.0] * 4, latents_std=[1.0] * 4),
        transformer=diffusers.GlmImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            text_embed_dim=32,
            time_embed_dim=32,
            condition_dim=8,
            prior_vq_quantizer_codebook_size=64,
        ),
        scheduler=_dynamic_flow(),
    )


def _glm_image_config(tokenizer: Any) -> Any:
    return transformers.GlmImageConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "vision_vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "eos_token_id": None,
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 1.0,
            },
        },
        vision_config={"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "image_size": 64},
        vq_config={"embed_dim": 16, "num_embeddings": 64, "latent_channels": 16},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image|>"),
        image_start_token_id=0,
        image_end_token_id=1,
    )


KINDS: dict[str, Callable[[], Any]] = {
    "sd": stable_diffusion,
    "sdxl": stable_diffusion_xl,
    "sd3": stable_diffusion_3,
    "flux": flux,
    "flux2klein": flux2_klein,
    "qwenimage": qwen_image,
    "qwenimage_edit": qwen_image_edit,
    "zimage": z_image,
    "wan": wan,
    "wan22": wan_two,
    "wan_i2v": wan_image_to_video,
    "wan_ti2v": wan_of_both,
    "cogvideox": cogvideox,
    "stableaudio": stable_audio,
    "glmimage": glm_image,
}

_NOISE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def _unet(**conditioning: Any) -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **conditioning,
    )


def _kl_blocks(channels: tuple[int, ...]) -> dict[str, Any]:
    return {
        "block_out_channels": channels,
        "down_block_types": ("DownEncoderBlock2D",) * len(channels),
        "up_block_types": ("UpDecoderBlock2D",) * len(channels),
        "layers_per_block": 1,
        "sample_size": 64,
    }


def _kl_autoencoder(latent_channels: int = 4, **scaling: float) -> Any:
    """8 pixels to a latent."""
    return diffusers.AutoencoderKL(
        **_kl_blocks((8, 16, 16, 16)), latent_channels=latent_channels, norm_num_groups=4, **scaling
    )


def _causal_blocks(width: int) -> dict[str, Any]:
    """Of the video autoencoders of Wan and Qwen: 8 pixels and 4 frames to a latent."""
    return {
        "base_dim": width,
        "z_dim": 4,
        "dim_mult": [1, 2, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    }


def _dynamic_flow(**shifts: float) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_image_seq_len=256, **shifts)


def _qwen_parts() -> dict[str, Any]:
    tokenizer = tiny_text.qwen_tokenizer()
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    return {
        "tokenizer": tokenizer,
        "text_encoder": tiny_text.qwen_vl_encoder(tokenizer),
        "vae": diffusers.AutoencoderKLQwenImage(**_causal_blocks(12)),
        "transformer": transformer,
        "scheduler": _dynamic_flow(base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02),
    }


def _wan_parts() -> dict[str, Any]:
    tokenizer = tiny_text.t5_tokenizer(512)
    return {
        "tokenizer": tokenizer,
        "text_encoder": tiny_text.t5_encoder(tokenizer, multilingual=True),
        "scheduler": diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
        ),
        "vae": diffusers.AutoencoderKLWan(**_causal_blocks(8)),
    }


def _wan_transformer() -> Any:
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=64,
    )
