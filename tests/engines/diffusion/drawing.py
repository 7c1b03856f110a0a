"""Draws with a tiny pipeline and counts what runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from app.engines.diffusion.options import DiffusionOptions


def draw(pipe: Any, *, seed: int = 0, steps: int = 4, **more: Any) -> np.ndarray:
    """One picture or clip as float32 in 0..1: (height, width, 3) with the frames first, if any."""
    arguments = {"prompt": "a red circle", "height": 64, "width": 64, **more}
    if type(pipe).__name__.startswith("Wan"):
        arguments["num_frames"] = 5
    generator = torch.Generator("cpu").manual_seed(seed)
    output = pipe(**arguments, num_inference_steps=steps, generator=generator, output_type="np", return_dict=False)
    return np.asarray(output[0][0])


@contextmanager
def counted(*modules: torch.nn.Module) -> Iterator[list[int]]:
    """How often each module's forward ran."""
    counts = [0] * len(modules)

    def hook_of(index: int) -> Any:
        def hook(*_: Any) -> None:
            counts[index] += 1

        return hook

    hooks = [module.register_forward_hook(hook_of(index)) for index, module in enumerate(modules)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def weight_bytes(module: torch.nn.Module) -> int:
    """Bytes of the weights, of quantized tensors those of the parts that hold the numbers."""
    return sum(_bytes(parameter) for parameter in module.parameters())


def _bytes(tensor: torch.Tensor) -> int:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return tensor.numel() * tensor.element_size()
    return sum(_bytes(getattr(tensor, name)) for name in flatten()[0])


def given(**options: Any) -> DiffusionOptions:
    """Options of a stage that computes on the CPU."""
    return DiffusionOptions(device="cpu", **options)
