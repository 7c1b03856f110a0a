"""FlashAttention that gives the same bits every time (--fa-deterministic)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from diffusers.models import attention_dispatch as dispatch
from diffusers.models.attention_dispatch import AttentionBackendName

from app.engines.diffusion.attention import attention_layers
from app.engines.diffusion.options import DiffusionOptions

_CALLED = {
    AttentionBackendName.FLASH: "flash_attn_func",
    AttentionBackendName.FLASH_VARLEN: "flash_attn_varlen_func",
    AttentionBackendName._FLASH_3: "_wrapped_flash_attn_3",
    AttentionBackendName._FLASH_VARLEN_3: "flash_attn_3_varlen_func",
}
"""What diffusers calls for a kernel of an installed package, by its name in diffusers' module."""


def make_deterministic(models: Mapping[str, torch.nn.Module], options: DiffusionOptions) -> Iterator[str]:
    """Have the FlashAttention kernels of `models` called as deterministic, if the options ask for it."""
    if not options.fa_deterministic:
        return
    layers = [layer for model in models.values() for layer in attention_layers(model)]
    chosen = {layer.processor._attention_backend for layer in layers} - {None}
    flash = sorted((backend for backend in chosen if "flash" in backend.value), key=lambda backend: backend.value)
    if not flash:
        yield "--fa-deterministic has no effect: no layer is told to use a kernel of FlashAttention"
        return
    for backend in flash:
        _bind(backend)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield f"deterministic: {', '.join(str(backend.value) for backend in flash)}"


def _bind(backend: AttentionBackendName) -> None:
    """diffusers hands no such argument on, so that it is bound to what it calls."""
    if name := _CALLED.get(backend):
        setattr(dispatch, name, _deterministic(getattr(dispatch, name)))
    elif hub := dispatch._HUB_KERNELS_REGISTRY.get(backend):
        hub.kernel_fn = _deterministic(hub.kernel_fn)


def _deterministic(kernel: Any) -> Any:
    return kernel if isinstance(kernel, partial) else partial(kernel, deterministic=True)
