"""A few rows of a checkpoint's tensors, read without the rest: a talker needs some of the thinker's embeddings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"

EMBEDDINGS = "thinker.model.embed_tokens.weight"
"""The thinker's, of which talkers need a few rows."""


def read_rows(model: Path, name: str, rows: Sequence[int]) -> torch.Tensor:
    """Those `rows` of the matrix `name`, in that order, [len(rows), width].

    Raises:
        ValueError: the checkpoint has no such tensor, or is not in safetensors.
        OSError: its files cannot be read.
    """
    with safe_open(model / _file_of(model, name), framework="pt") as file:
        if name not in file.keys():  # noqa: SIM118 -- it is no mapping
            raise ValueError(f"{model} has no tensor {name}")
        matrix = file.get_slice(name)
        return torch.stack([matrix[row] for row in rows])


def _file_of(model: Path, name: str) -> str:
    index = model / _INDEX
    if not index.exists():
        if (model / _WHOLE).exists():
            return _WHOLE
        raise ValueError(f"{model} has no weights in safetensors ({_WHOLE} or {_INDEX})")
    files = json.loads(index.read_bytes())["weight_map"]
    if name not in files:
        raise ValueError(f"{model} has no tensor {name}")
    return str(files[name])
