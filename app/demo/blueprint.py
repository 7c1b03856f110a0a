"""The parts of the demo's picture model, untrained: stock classes of diffusers and transformers, made small.

64 x 64 pixels are 16 x 16 latents (the autoencoder shrinks 4 times: at 8 times, stars and hearts become blobs).
"""

from __future__ import annotations

import re
from random import Random

from diffusers import AutoencoderTiny, DDIMScheduler, UNet2DConditionModel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AddedToken, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from app.demo.shapes import PICTURE_SIZE, caption, draw_scene

PROMPT_TOKENS = 32
_TEXT_WIDTH = 128


def tokenizer() -> CLIPTokenizer:
    """Every word of a caption is one token; any other text falls apart into bytes.

    Made by hand: a trained one would number its tokens differently each time.
    """
    rng = Random("words")
    captions = [caption(draw_scene(rng), rng) for _ in range(4000)]
    words = sorted({word for text in captions for word in re.findall(r"\w+", text)})
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    made = CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=PROMPT_TOKENS)
    made.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in words])
    return made


def autoencoder() -> AutoencoderTiny:
    """Pictures from -1 to 1 to 4 channels of latents and back."""
    return AutoencoderTiny(
        encoder_block_out_channels=(32, 32, 32),
        num_encoder_blocks=(0, 1, 1),
        decoder_block_out_channels=(32, 32, 32),
        num_decoder_blocks=(2, 1, 0),
        latent_channels=4,
    )


def text_encoder(tokens: CLIPTokenizer) -> CLIPTextModel:
    """Two layers, trained together with the denoiser."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokens),
            hidden_size=_TEXT_WIDTH,
            projection_dim=_TEXT_WIDTH,
            intermediate_size=2 * _TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=PROMPT_TOKENS,
            bos_token_id=tokens.bos_token_id,
            eos_token_id=tokens.eos_token_id,
            pad_token_id=tokens.pad_token_id,
        )
    )


def denoiser() -> UNet2DConditionModel:
    """The text is read where the picture is 8 x 8 and 4 x 4: attention over 16 x 16 costs much and adds little."""
    return UNet2DConditionModel(
        sample_size=PICTURE_SIZE // 4,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 80, 128),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=_TEXT_WIDTH,
        attention_head_dim=4,  # heads a layer: the name is an old mistake of the class
    )


def scheduler() -> DDIMScheduler:
    """Starts from pure noise (zero terminal SNR, hence v-prediction), or plain backgrounds could not be drawn."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )
