"""The tiny Stable Diffusion of tests.tiny_diffusion in the one file that its authors would have published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

_RESNET = (
    (r"\.norm1\.", ".in_layers.0."),
    (r"\.conv1\.", ".in_layers.2."),
    (r"\.time_emb_proj\.", ".emb_layers.1."),
    (r"\.norm2\.", ".out_layers.0."),
    (r"\.conv2\.", ".out_layers.3."),
    (r"\.conv_shortcut\.", ".skip_connection."),
)
_UNET = (
    (r"^conv_in\.", "input_blocks.0.0."),
    (r"^time_embedding\.linear_1\.", "time_embed.0."),
    (r"^time_embedding\.linear_2\.", "time_embed.2."),
    (r"^conv_norm_out\.", "out.0."),
    (r"^conv_out\.", "out.2."),
    (r"^down_blocks\.0\.resnets\.0", "input_blocks.1.0"),
    (r"^down_blocks\.0\.downsamplers\.0\.conv", "input_blocks.2.0.op"),
    (r"^down_blocks\.1\.resnets\.0", "input_blocks.3.0"),
    (r"^down_blocks\.1\.attentions\.0", "input_blocks.3.1"),
    (r"^mid_block\.resnets\.0", "middle_block.0"),
    (r"^mid_block\.attentions\.0", "middle_block.1"),
    (r"^mid_block\.resnets\.1", "middle_block.2"),
    (r"^up_blocks\.0\.resnets\.(\d)", r"output_blocks.\1.0"),
    (r"^up_blocks\.0\.attentions\.(\d)", r"output_blocks.\1.1"),
    (r"^up_blocks\.0\.upsamplers\.0", "output_blocks.1.2"),
    (r"^up_blocks\.1\.resnets\.0", "output_blocks.2.0"),
    (r"^up_blocks\.1\.resnets\.1", "output_blocks.3.0"),
)
_AUTOENCODER = (
    (r"\.down_blocks\.(\d)\.resnets\.(\d)", r".down.\1.block.\2"),
    (r"\.down_blocks\.(\d)\.downsamplers\.0", r".down.\1.downsample"),
    (r"\.mid_block\.resnets\.0", ".mid.block_1"),
    (r"\.mid_block\.resnets\.1", ".mid.block_2"),
    (r"\.mid_block\.attentions\.0", ".mid.attn_1"),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)
_LEVELS = 4


def save_original(pipe: Any, file: Path) -> Path:
    """Write unet, autoencoder and text encoder under their authors' names."""
    tensors = {}
    for name, tensor in pipe.unet.state_dict().items():
        rules = _UNET + (_RESNET if ".resnets." in name else ())
        tensors["model.diffusion_model." + _renamed(name, rules)] = tensor
    for name, tensor in pipe.vae.state_dict().items():
        renamed = _renamed(name, _AUTOENCODER)
        renamed = re.sub(r"\.up_blocks\.(\d)\.resnets\.(\d)", lambda m: f".up.{_flipped(m)}.block.{m[2]}", renamed)
        renamed = re.sub(r"\.up_blocks\.(\d)\.upsamplers\.0", lambda m: f".up.{_flipped(m)}.upsample", renamed)
        convolution = ".attn_1." in renamed and tensor.dim() == 2
        tensors["first_stage_model." + renamed] = tensor[:, :, None, None] if convolution else tensor
    for name, tensor in pipe.text_encoder.state_dict().items():
        tensors["cond_stage_model.transformer.text_model." + name.removeprefix("text_model.")] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    return file


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _flipped(match: re.Match[str]) -> int:
    """The decoder's levels are counted from the other end."""
    return _LEVELS - 1 - int(match[1])
