"""LoRA adapters for tiny pipelines, with random weights that change a picture visibly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from app.engines.diffusion.parts import denoisers

_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")


def write_adapter(pipe: Any, file: Path, seed: int, *, rank: int = 2, strength: float = 0.5) -> Path:
    """An adapter for the attention of the first denoiser of `pipe`, in the form of published ones."""
    name, model = next(iter(denoisers(pipe).items()))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, layer in model.named_modules():
        if path.endswith(_TARGETS):
            rows, columns = layer.weight.shape
            prefix = f"{name}.{path}"
            tensors[f"{prefix}.lora_A.weight"] = strength * torch.randn(rank, columns, generator=generator)
            tensors[f"{prefix}.lora_B.weight"] = strength * torch.randn(rows, rank, generator=generator)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    return file
