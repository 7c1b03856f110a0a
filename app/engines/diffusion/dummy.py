"""--diffusion-load-format dummy: a pipeline of the model's shape with random weights, for tests of speed and memory."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
import transformers

from app.engines.diffusion.checkpoint import INDEX, Checkpoint, init_parameters
from app.settings.inspection import read_json

_SEED = 0
"""Replicas of one stage have equal weights."""


def build(checkpoint: Checkpoint, cls: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The pipeline with random weights made on `device`; tokenizers, schedulers and processors are the real ones.

    Raises:
        ValueError: a component is of a class that only the pipeline's own code knows.
    """
    torch.manual_seed(_SEED)
    parts = {name: _part(checkpoint, name, dtype, device) for name in checkpoint.components}
    index = read_json(checkpoint.directory / INDEX) or {}
    takes = init_parameters(cls)
    values = {name: value for name, value in index.items() if name in takes and not isinstance(value, list)}
    absent = {name: None for name in takes if index.get(name) == [None, None]}
    return cls(**{name: value for name, value in (absent | values | parts).items() if name in takes})


def _part(checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device) -> Any:
    cls, path = checkpoint.component_class(name), checkpoint.part(name)
    if cls is None:
        raise ValueError(
            f"{name} of {checkpoint.directory} has a class of its own; random weights cannot be made for it"
        )
    if issubclass(cls, diffusers.ModelMixin):
        with device:
            model = cls.from_config(cls.load_config(path, local_files_only=True))
    elif issubclass(cls, transformers.PreTrainedModel):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        with device:
            model = cls(config)
    else:
        return cls.from_pretrained(path, local_files_only=True)
    return model.to(dtype).eval()
