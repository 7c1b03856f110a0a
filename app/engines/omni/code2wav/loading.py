"""The vocoder out of a checkpoint that holds a thinker and a talker too: no other weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from safetensors import SafetensorError, safe_open

from app.engines.device import torch_dtype
from app.engines.omni.code2wav.options import Code2WavOptions

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def load_part(cls: Any, config: Any, directory: Path, prefix: str, options: Code2WavOptions, device: Any) -> Any:
    """The model `cls` of the weights whose names begin with `prefix`, on the stage's device.

    Raises:
        ValueError: weights are missing, or are none of this model.
        OSError: a file of the checkpoint is missing or broken.
    """
    weights = read_weights(directory, prefix)
    transformers.logging.disable_progress_bar()
    dtype = torch_dtype(options.dtype, device, small=True)
    model, report = cls.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True)
    for what, names in report.items():
        if names:
            some = ", ".join(map(str, sorted(names)[:3]))
            raise ValueError(f"{directory} holds no whole {prefix.rstrip('.')}: {len(names)} {what}, among them {some}")
    return model.to(device).eval()


def read_weights(directory: Path, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of that prefix, by their names without it; they are read from the disk when they are used.

    Raises:
        ValueError: there are none, or the index cannot be read.
        OSError: a file is missing or broken.
    """
    weights = {}
    for file, names in _files(directory, prefix).items():
        try:
            with safe_open(directory / file, "pt") as shard:
                for name in names or shard.keys():
                    if name.startswith(prefix):
                        weights[name.removeprefix(prefix)] = shard.get_tensor(name)
        except SafetensorError as error:
            raise OSError(f"{directory / file} cannot be read: {error}") from None
    if not weights:
        raise ValueError(f"{directory} has no weights {prefix}*: is it a model that speaks?")
    return weights


def _files(directory: Path, prefix: str) -> dict[str, list[str]]:
    """Names of weights by file; none: all that the file has."""
    if not (directory / _INDEX).is_file():
        return {_SINGLE: []}
    try:
        index = msgspec.json.decode((directory / _INDEX).read_bytes(), type=_Index)
    except msgspec.DecodeError as error:
        raise ValueError(f"{directory / _INDEX} cannot be read: {error}") from None
    files: dict[str, list[str]] = {}
    for name, file in index.weight_map.items():
        if name.startswith(prefix):
            files.setdefault(file, []).append(name)
    return files
