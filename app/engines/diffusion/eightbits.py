"""Attention on keys and values of 8 bits (--diffusion-kv-cache-dtype fp8), but for some steps and layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName

from app.engines.diffusion.attention import attention_layers, kernel_problem
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.ranges import read_ranges
from app.engines.diffusion.watch import Watch

_HOPPER = (9, 0)


class EightBits:
    """The layers of a pipeline's denoisers that have two kernels: their own, and one of 8 bits."""

    def __init__(self, pipe: Any, options: DiffusionOptions, kernel: AttentionBackendName) -> None:
        """
        Raises:
            ValueError: no layer is left, or diffusers has fixed the kernels of the denoisers.
        """
        self._skipped_steps = read_ranges(options.diffusion_kv_cache_skip_steps)
        skipped = read_ranges(options.diffusion_kv_cache_skip_layers)
        self._models = tuple(denoisers(pipe).values())
        self._kernel = kernel
        self._layers = [
            (layer.processor, layer.processor._attention_backend)
            for model in self._models
            for number, layer in enumerate(attention_layers(model))
            if number not in skipped
        ]
        if not self._layers:
            raise ValueError(
                "--diffusion-kv-cache-dtype fp8: the denoiser has no layer whose kernel can be chosen, or "
                "--diffusion-kv-cache-skip-layers names all of them; remove it"
            )
        self._choose(0)

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def during(self, watch: Watch) -> Iterator[None]:
        """Choose the kernels by the steps of the call that is made within."""
        if not self._skipped_steps:
            yield
            return

        def choose(*_: Any) -> None:
            self._choose(watch.step)

        with ExitStack() as stack:
            for model in self._models:
                stack.callback(model.register_forward_pre_hook(choose).remove)
            yield

    def _choose(self, step: int) -> None:
        for processor, own in self._layers:
            processor._attention_backend = own if step in self._skipped_steps else self._kernel


def eight_bits(pipe: Any, options: DiffusionOptions, device: torch.device) -> EightBits | None:
    """The pipeline's kernels of 8 bits, None where the options ask for none.

    Raises:
        ValueError: they do not run here, or the pipeline has no place for them.
    """
    if options.diffusion_kv_cache_dtype != "fp8":
        return None
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == _HOPPER
    kernel = (
        AttentionBackendName._SAGE_QK_INT8_PV_FP8_CUDA_SM90
        if hopper
        else AttentionBackendName._SAGE_QK_INT8_PV_FP8_CUDA
    )
    if problem := kernel_problem(kernel, device):
        raise ValueError(
            f"--diffusion-kv-cache-dtype fp8 is SageAttention's kernel on CUDA, which does not run here: {problem}; "
            "remove it, or use --quantization fp8"
        )
    return EightBits(pipe, options, kernel)
