"""Omni checkpoints of stock transformers classes with about a million random float32 weights, made offline.

`build(kind, directory)` writes one as a published model would be: config, weights, tokenizer, chat template, processor
and two speakers, SPEAKERS. Equal kinds have equal weights. What random weights would spoil is set right:

* the thinker writes printable ASCII and ends by itself after some dozen tokens, as its vocabulary is its tokenizer's;
* the talker says codes and its stop token only, and hears its own last code as well as it hears the thinker;
* the vocoder's sound has a root mean square of about 0.1, and depends on its codes.

Qwen3-Omni has 4 code groups here, and 16 as published.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as qwen2_5
from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as qwen3

SPEAKERS = ("Chelsie", "Ethan")
CODES = 64
LOUDNESS = 0.1
_ROLES = ("system", "user", "assistant")
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN2_5 = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_QWEN3 = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def build(kind: str, directory: Path) -> Path:
    """Write the model `kind` (a key of KINDS) into `directory`, and return that."""
    torch.manual_seed(0)
    directory.mkdir(parents=True, exist_ok=True)
    KINDS[kind](directory)
    return directory


def qwen2_5_omni(
    directory: Path, *, speaks: bool = True, sizes: Mapping[str, Any] | None = None, endless: bool = False
) -> None:
    """Speakers in spk_dict.pt; codes at 50 a second. Without `speaks` it is a thinker that writes.

    `sizes` replace members of its configuration; an `endless` one neither stops to write nor to speak by itself.
    """
    tokenizer = _tokenizer(directory, _QWEN2_5, ("<tts_pad>", "<tts_bos>", "<tts_eos>"))
    ids = tokenizer.convert_tokens_to_ids
    parts = {
        "thinker_config": _qwen2_5_thinker(tokenizer),
        "talker_config": _qwen2_5_talker(tokenizer),
        "token2wav_config": _token2wav(),
    }
    config = qwen2_5.Qwen2_5OmniConfig(**_replaced(parts, sizes or {}), enable_audio_output=speaks)
    model = transformers.Qwen2_5OmniForConditionalGeneration(config).eval()
    _legible(model.thinker.lm_head, tokenizer, end=0.0 if endless else 0.9)
    if speaks:
        _articulate(model.talker.codec_head, stops=() if endless else (CODES + 2, CODES + 4))
        model.talker.get_input_embeddings().weight.data.normal_()
        _expressive(model.token2wav.code2wav_dit_model)
        _audible(
            model.token2wav.code2wav_bigvgan_model.conv_post,
            lambda: model.token2wav(
                torch.arange(16)[None],
                conditioning=torch.ones(1, 32),
                reference_mel=torch.zeros(1, 60, 80),
            ),
        )
    _speakers(directory, bos_token=ids("<tts_bos>"))
    _save(model, directory, "Qwen2_5OmniModel", eos=ids("<|im_end|>"), pad=ids("<|endoftext|>"))
    _processor(directory, "Qwen2_5OmniProcessor", patch_size=14)


def _replaced(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the members of `sizes`, at any depth, in the place of its own."""
    merged = dict(config)
    for name, size in sizes.items():
        merged[name] = _replaced(merged[name], size) if isinstance(size, Mapping) and name in merged else size
    return merged


def _qwen2_5_thinker(tokenizer: Any) -> dict[str, Any]:
    return {
        "text_config": {
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": _rope(),
            "tie_word_embeddings": False,
            "initializer_range": 0.2,
            "pad_token_id": tokenizer.pad_token_id,
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": 128,
            "fullatt_block_indexes": [1],
        },
        "audio_config": {
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "output_dim": 128,
        },
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
        **_qwen2_5_tokens(tokenizer),
    }


def _qwen2_5_talker(tokenizer: Any) -> dict[str, Any]:
    ids = tokenizer.convert_tokens_to_ids
    return {
        "vocab_size": CODES + 16,
        "embedding_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_parameters": _rope(),
        "initializer_range": 0.2,
        "tts_text_pad_token_id": ids("<tts_pad>"),
        "tts_text_start_token_id": ids("<tts_bos>"),
        "tts_text_end_token_id": ids("<tts_eos>"),
        "tts_codec_pad_token_id": CODES + 2,
        "tts_codec_start_token_id": CODES + 3,
        "tts_codec_end_token_id": CODES + 4,
        "tts_codec_mask_token_id": CODES + 6,
        **_qwen2_5_tokens(tokenizer),
    }


def _qwen2_5_tokens(tokenizer: Any) -> dict[str, int]:
    tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _QWEN2_5.items()}
    return {
        "audio_token_index": tokens["audio_token"],
        "image_token_index": tokens["image_token"],
        "video_token_index": tokens["video_token"],
        "audio_start_token_id": tokens["audio_bos_token"],
        "audio_end_token_id": tokens["audio_eos_token"],
        "vision_start_token_id": tokens["vision_bos_token"],
        "vision_end_token_id": tokens["vision_eos_token"],
    }


def _token2wav() -> dict[str, Any]:
    return {
        "dit_config": {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "head_dim": 16,
            "emb_dim": 32,
            "look_ahead_layers": [2],
            "look_backward_layers": [0, 3],
            "num_embeds": CODES + 1,
            "enc_emb_dim": 32,
            "enc_dim": 16,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_res2net_scale": 4,
            "enc_se_channels": 16,
            "dropout": 0.0,
        },
        "bigvgan_config": {
            "upsample_initial_channel": 64,
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 3, 5]],
        },
    }


def _speakers(directory: Path, bos_token: int) -> None:
    numbers = torch.Generator().manual_seed(1)
    speakers = {
        name: {
            "cond": torch.randn(1, 32, generator=numbers),
            "ref_mel": torch.randn(1, 60, 80, generator=numbers),
            "bos_token": bos_token,
        }
        for name in SPEAKERS
    }
    torch.save(speakers, directory / "spk_dict.pt")


def qwen3_omni_moe(directory: Path, *, speaks: bool = True, endless: bool = False) -> None:
    """Speakers in the talker's config, small letters; codes at 12.5 a second. Without `speaks` only the thinker.

    `endless`: as of qwen2_5_omni.
    """
    tokenizer = _tokenizer(directory, _QWEN3, ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"))
    ids = tokenizer.convert_tokens_to_ids
    config = qwen3.Qwen3OmniMoeConfig(
        thinker_config=_qwen3_thinker(tokenizer),
        talker_config=_qwen3_talker(tokenizer),
        code2wav_config=_code2wav(),
        enable_audio_output=speaks,
        im_start_token_id=ids("<|im_start|>"),
        im_end_token_id=ids("<|im_end|>"),
        tts_pad_token_id=ids("<tts_pad>"),
        tts_bos_token_id=ids("<tts_text_bos>"),
        tts_eos_token_id=ids("<tts_text_eod>"),
        system_token_id=ids("system"),
        user_token_id=ids("user"),
        assistant_token_id=ids("assistant"),
    )
    model = transformers.Qwen3OmniMoeForConditionalGeneration(config).eval()
    _legible(model.thinker.lm_head, tokenizer, end=0.0 if endless else 1.5)
    if speaks:
        _fill_experts(model.talker)
        _articulate(model.talker.codec_head, stops=() if endless else (config.talker_config.codec_eos_token_id,))
        model.talker.get_input_embeddings().weight.data.normal_(std=0.5)
        _audible(model.code2wav.decoder[-1].conv, lambda: model.code2wav(torch.arange(64).reshape(1, 4, 16)))
    name = "Qwen3OmniMoeForConditionalGeneration"
    _save(model, directory, name, eos=ids("<|im_end|>"), pad=ids("<|endoftext|>"))
    if not speaks:
        _drop_from_config(directory, ("talker_config", "code2wav_config"))
    _processor(directory, "Qwen3OmniMoeProcessor", patch_size=16)


def _qwen3_thinker(tokenizer: Any) -> dict[str, Any]:
    return {
        "text_config": {
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": _rope(mrope_interleaved=True),
            "tie_word_embeddings": False,
            "initializer_range": 0.2,
            "pad_token_id": tokenizer.pad_token_id,
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "image_size": 128,
            "apply_vit_abs_pos_embed": True,
            "deepstack_visual_indexes": [0],
        },
        "audio_config": {
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "output_dim": 64,
            "downsample_hidden_size": 16,
        },
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "initializer_range": 0.2,
        **_qwen3_tokens(tokenizer),
    }


def _qwen3_talker(tokenizer: Any) -> dict[str, Any]:
    predictor = {
        "vocab_size": CODES,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_code_groups": 4,
        "initializer_range": 0.2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    text = {
        # The last 1024 are control tokens: transformers lets none of them be said but the end.
        "vocab_size": CODES + 1024,
        "hidden_size": 64,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": _rope(mrope_interleaved=True),
        "initializer_range": 0.2,
    }
    return {
        "code_predictor_config": predictor,
        "text_config": text,
        "num_code_groups": 4,
        "thinker_hidden_size": 64,
        "accept_hidden_layer": 2,
        "initializer_range": 0.2,
        "codec_pad_id": CODES + 100,
        "codec_bos_id": CODES + 101,
        "codec_eos_token_id": CODES + 102,
        "codec_nothink_id": CODES + 107,
        "codec_think_bos_id": CODES + 108,
        "codec_think_eos_id": CODES + 109,
        "speaker_id": {name.lower(): CODES + 200 + index for index, name in enumerate(SPEAKERS)},
        "spatial_merge_size": 2,
        **_qwen3_tokens(tokenizer),
    }


def _qwen3_tokens(tokenizer: Any) -> dict[str, int]:
    tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _QWEN3.items()}
    return {
        "audio_token_id": tokens["audio_token"],
        "image_token_id": tokens["image_token"],
        "video_token_id": tokens["video_token"],
        "audio_start_token_id": tokens["audio_bos_token"],
        "audio_end_token_id": tokens["audio_eos_token"],
        "vision_start_token_id": tokens["vision_bos_token"],
        "vision_end_token_id": tokens["vision_eos_token"],
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODES,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "num_quantizers": 4,
        "decoder_dim": 64,
        "sliding_window": 16,
        "initializer_range": 0.2,
        "layer_scale_initial_scale": 0.5,
    }


def _rope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6], **more}


def _tokenizer(directory: Path, multimodal: dict[str, str], speech: Iterable[str]) -> Any:
    """A token a byte; and each role's name is one, as Qwen3-Omni's talker tells them by that."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens(list(_ROLES))
    core.add_special_tokens([*_CONTROL, *speech, *multimodal.values()])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=multimodal,
    )
    template = _chat_template(**multimodal)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return tokenizer


def _chat_template(**tokens: str) -> str:
    parts = [
        ("audio", tokens["audio_bos_token"] + tokens["audio_token"] + tokens["audio_eos_token"]),
        ("image", tokens["vision_bos_token"] + tokens["image_token"] + tokens["vision_eos_token"]),
        ("video", tokens["vision_bos_token"] + tokens["video_token"] + tokens["vision_eos_token"]),
    ]
    media = "".join(f"{{%- elif '{kind}' in part.type -%}}{{{{ '{text}' }}}}" for kind, text in parts)
    return (
        "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
        "{%- for part in message.content -%}{%- if part.type == 'text' -%}{{ part.text }}" + media + "{%- endif -%}"
        "{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    )


def _legible(head: torch.nn.Linear, tokenizer: Any, end: float) -> None:
    printable = [tokenizer.convert_tokens_to_ids(letter) for letter in string.printable[:94]]
    _only(head, [*printable, tokenizer.convert_tokens_to_ids("Ġ")], [tokenizer.eos_token_id], end)


def _articulate(head: torch.nn.Linear, stops: Iterable[int]) -> None:
    _only(head, range(CODES), stops, 1.2)


@torch.no_grad()
def _only(head: torch.nn.Linear, allowed: Iterable[int], stops: Iterable[int], likely: float) -> None:
    """A row of zeros is hardly ever the best of many, and the larger a stop's is the sooner it comes."""
    factors = torch.zeros(head.out_features, 1)
    factors[list(allowed)] = 1.0
    factors[list(stops)] = likely
    head.weight.mul_(factors)


@torch.no_grad()
def _expressive(dit: torch.nn.Module) -> None:
    """Layers of the size that training starts with; transformers' are so small that the noise stays what it was."""
    for module in dit.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.normal_(std=module.in_features**-0.5)
        elif isinstance(module, torch.nn.Embedding):
            module.weight.normal_()


@torch.no_grad()
def _fill_experts(talker: torch.nn.Module) -> None:
    """transformers leaves them as the memory was: zeros at best. With this seed some speech ends, and some does not."""
    numbers = torch.Generator().manual_seed(3)
    for name, parameter in talker.named_parameters():
        if ".experts." in name:
            parameter.normal_(std=0.2, generator=numbers)


@torch.no_grad()
def _audible(last: torch.nn.Module, speak: Callable[[], torch.Tensor]) -> None:
    """By what its last layer gives, as the sound itself is clipped."""
    given: list[torch.Tensor] = []
    hook = last.register_forward_hook(lambda module, inputs, output: given.append(output))
    speak()
    hook.remove()
    factor = LOUDNESS / given[0].square().mean().sqrt()
    for parameter in last.parameters():
        parameter.mul_(factor)


def _save(model: Any, directory: Path, architecture: str, eos: int, pad: int) -> None:
    model.generation_config = transformers.GenerationConfig(eos_token_id=[eos], pad_token_id=pad)
    model.save_pretrained(directory)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [architecture]}, indent=2))


def _drop_from_config(directory: Path, keys: Iterable[str]) -> None:
    file = directory / "config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in keys}
    file.write_text(json.dumps(config, indent=2))


def _processor(directory: Path, name: str, patch_size: int) -> None:
    settings = {
        "processor_class": name,
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 3136,
        "max_pixels": 200_704,
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))


KINDS: dict[str, Callable[[Path], None]] = {
    "qwen2_5_omni": qwen2_5_omni,
    "qwen2_5_omni_thinker": lambda directory: qwen2_5_omni(directory, speaks=False),
    "qwen3_omni_moe": qwen3_omni_moe,
    "qwen3_omni_moe_thinker": lambda directory: qwen3_omni_moe(directory, speaks=False),
}
