"""Splitting a loaded pipeline over the ranks: its sequence, its layers or its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import ContextParallelConfig
from diffusers.hooks import tensor_parallel
from diffusers.models._modeling_parallel import TensorParallelConfig
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.ranks import weights
from app.engines.diffusion.ranks.world import World


def split(pipe: Any, options: DiffusionOptions, checkpoint_part: Callable[[str], Path], world: World) -> Iterator[str]:
    """Split sequences, layers or weights of the denoisers, as the options say; yields what was done.

    `checkpoint_part` is where a component's files lie.

    Raises:
        ValueError: the model cannot be split so; says which models can.
    """
    layout = world.layout
    for name, model in denoisers(pipe).items():
        if layout.sequence > 1:
            yield _split_sequence(name, model, options, world)
        if layout.tensor > 1:
            yield _split_layers(name, model, world)
        if world.shards is not None:
            yield _shard(name, model, options, checkpoint_part(name), world)


def _split_sequence(name: str, model: Any, options: DiffusionOptions, world: World) -> str:
    if not getattr(model, "_cp_plan", None):
        raise ValueError(
            f"the sequence of {type(model).__name__} cannot be split: diffusers has no plan for it; "
            "--cfg-parallel-size and --use-hsdp work with every model"
        )
    layout = world.layout
    config = ContextParallelConfig(
        ring_degree=layout.ring,
        ulysses_degree=layout.ulysses,
        ulysses_anything=options.ulysses_mode == "advanced_uaa",
        mesh=world.parts,
    )
    try:
        with _any_device(world.device):
            model.enable_parallelism(config=config)
    except ValueError as error:
        raise ValueError(f"the sequence of {type(model).__name__} cannot be split: {error}") from None
    how = " x ".join(
        f"{kind} {size}" for kind, size in (("ring", layout.ring), ("Ulysses", layout.ulysses)) if size > 1
    )
    return f"the sequence of {name} is split over {layout.sequence} ranks ({how})"


def _split_layers(name: str, model: Any, world: World) -> str:
    if not getattr(model, "_tp_plan", None):
        raise ValueError(
            f"--tensor-parallel-size: the layers of {type(model).__name__} cannot be split: diffusers has no plan for "
            "it; --use-hsdp splits the weights of every model"
        )
    config = TensorParallelConfig(tp_degree=world.layout.tensor, mesh=world.parts)
    try:
        with _any_device(world.device):
            model.enable_parallelism(config=config)
    except ValueError as error:
        raise ValueError(f"--tensor-parallel-size: {type(model).__name__}: {error}") from None
    return f"the layers of {name} are split over {world.layout.tensor} ranks"


def _shard(name: str, model: torch.nn.Module, options: DiffusionOptions, files: Path, world: World) -> str:
    """Each block is gathered when it is its turn; what no block holds stays gathered from the first call on."""
    broadcast = options.enable_broadcast_weight_load
    whole = dict(model.state_dict()) if broadcast and world.rank == 0 else {}
    blocks = [block for blocks in model.children() if isinstance(blocks, torch.nn.ModuleList) for block in blocks]
    resting = options.enable_distributed_layerwise_offload
    for number, block in enumerate(blocks):
        if not resting:
            fully_shard(block, mesh=world.shards)
        elif number < options.dlo_resident_layers:
            fully_shard(block, mesh=world.shards, reshard_after_forward=False)
        else:
            pinned = CPUOffloadPolicy(pin_memory=world.device.type != "cpu")
            fully_shard(block, mesh=world.shards, offload_policy=pinned)
    fully_shard(model, mesh=world.shards)
    if broadcast:
        weights.fill_by_broadcast(model, whole)
    elif options.hsdp_weight_load_strategy == "pre_sharded":
        weights.fill_from_files(model, files, world.device)
    layout = world.layout
    if resting:
        moving = max(0, len(blocks) - options.dlo_resident_layers)
        return f"{moving} blocks of {name} rest in the host memory of {layout.shard} ranks, a part of each in every one"
    copies = f", {layout.replicate} times" if layout.replicate > 1 else ""
    return f"the weights of {name} are sharded over {layout.shard} ranks{copies}, {len(blocks)} blocks"


@contextmanager
def _any_device(device: torch.device) -> Iterator[None]:
    """diffusers takes CPUs for nothing that ranks run on: it divides by the number of accelerators, and has a list."""
    if device.type != "cpu":
        yield
        return
    count, known = torch.accelerator.device_count, tensor_parallel._SUPPORTED_TP_DEVICES
    torch.accelerator.device_count = lambda: 1
    tensor_parallel._SUPPORTED_TP_DEVICES = (*known, "cpu")
    try:
        yield
    finally:
        torch.accelerator.device_count, tensor_parallel._SUPPORTED_TP_DEVICES = count, known
