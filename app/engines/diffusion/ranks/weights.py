"""Weights that ranks do not read whole: denoisers filled shard by shard, text encoders split as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import safe_open
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers.distributed import DistributedConfig

from app.engines.diffusion.checkpoint import Checkpoint
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import DENOISERS
from app.settings.inspection import read_json


def read_in_part(options: DiffusionOptions, checkpoint: Checkpoint, dtype: torch.dtype, rank: int) -> dict[str, Any]:
    """The components of the pipeline that this rank does not read whole, by name: split, or without weights for now.

    Raises:
        ValueError: the text encoder's class has no plan by which its layers could be split.
    """
    parts: dict[str, Any] = {}
    if options.text_encoder_tp_size > 1:
        parts["text_encoder"] = _split_text_encoder(checkpoint, dtype, options.text_encoder_tp_size)
    if options.hsdp_weight_load_strategy == "pre_sharded" or (options.enable_broadcast_weight_load and rank > 0):
        for name in (name for name in DENOISERS if name in checkpoint.components):
            parts[name] = _empty(checkpoint, name, dtype)
    return parts


def _split_text_encoder(checkpoint: Checkpoint, dtype: torch.dtype, ranks: int) -> Any:
    cls = checkpoint.component_class("text_encoder") if "text_encoder" in checkpoint.components else None
    if cls is None or not issubclass(cls, transformers.PreTrainedModel):
        raise ValueError(
            f"--text-encoder-tp-size: {checkpoint.class_name} has no text encoder of transformers; remove it"
        )
    with torch.device("meta"):
        plan = cls(transformers.AutoConfig.from_pretrained(checkpoint.part("text_encoder"))).supports_tp_plan
    if not plan:
        raise ValueError(f"--text-encoder-tp-size: transformers has no plan to split {cls.__name__}; remove it")
    shared = DistributedConfig(tp_size=ranks)
    path = checkpoint.part("text_encoder")
    return cls.from_pretrained(path, dtype=dtype, local_files_only=True, distributed_config=shared).eval()


def _empty(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Any:
    """The denoiser without memory for its parameters; what it computes of its own (buffers) is there."""
    cls = checkpoint.component_class(name)
    with init_empty_weights():
        return cls.from_config(cls.load_config(checkpoint.part(name), local_files_only=True)).to(dtype).eval()


def fill_by_broadcast(model: torch.nn.Module, whole: dict[str, Any]) -> None:
    """Fill a sharded model on every rank from `whole`, the state that only rank 0 has (the others: empty)."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)


def fill_from_files(model: torch.nn.Module, directory: Path, device: torch.device) -> None:
    """Fill a sharded model without memory, each rank reading its rows of each weight.

    Raises:
        ValueError: the weights are not in safetensors files, or one is missing.
    """
    files = dict(_files(directory))
    state = {}
    for name, parameter in model.named_parameters():
        if name not in files:
            raise ValueError(f"--hsdp-weight-load-strategy pre_sharded: {directory} has no {name} in safetensors files")
        assert isinstance(parameter, DTensor)
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        with safe_open(files[name], "pt") as weights:
            rows = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
            local = weights.get_slice(name)[rows] if rows else weights.get_tensor(name)
        state[name] = DTensor.from_local(
            local.to(device, parameter.dtype),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    model.load_state_dict(state, strict=False, assign=True)


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    """The file of each weight."""
    index = read_json(directory / SAFE_WEIGHTS_INDEX_NAME)
    if index is not None:
        for name, file in index["weight_map"].items():
            yield name, directory / file
        return
    file = directory / SAFETENSORS_WEIGHTS_NAME
    if file.exists():
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                yield name, file
