"""Which devices a replica computes on."""

from __future__ import annotations

import re
from typing import Any

from app.engines.diffusion.layout import layout
from app.settings.schema import StageConfig
from app.settings.values import parse

_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)


def ranks(stage: StageConfig) -> int:
    """How many devices one replica of a stage needs, on all its hosts."""
    if stage.kind == "diffusion":
        return layout(stage.engine_args).world
    world = 1
    for size in _SIZES:
        world *= int(stage.engine_args.get(size) or 1)
    return world


def world_size(stage: StageConfig) -> int:
    """How many devices one replica of a stage needs on each of its hosts."""
    return max(1, ranks(stage) // nodes(stage))


def nodes(stage: StageConfig) -> int:
    """How many hosts one replica of a stage spans."""
    return int(stage.engine_args.get("nnodes") or 1) if stage.kind == "llm" else 1


def is_further_node(stage: StageConfig) -> bool:
    """Whether this host only computes for a replica whose first node is another host."""
    return stage.kind == "llm" and int(stage.engine_args.get("node_rank") or 0) > 0


def device_sets(stage: StageConfig, replicas: int) -> list[str]:
    """The devices of each of so many replicas: a part each where the stage names enough, else all for all of them."""
    world = world_size(stage)
    if world * replicas > len(stage.devices.split(",")):
        return [stage.devices] * replicas
    return split_devices(stage.devices, world)[:replicas]


def replica_devices(stage: StageConfig, replica_id: int) -> str:
    """Those of one of the replicas that are configured."""
    return device_sets(stage, stage.num_replicas)[replica_id]


def split_devices(devices: str, world: int) -> list[str]:
    """Devices in sets of `world`."""
    names = devices.split(",")
    return [",".join(names[i : i + world]) for i in range(0, len(names), world)]


def shares_devices(stage: StageConfig) -> bool:
    """All its replicas run on the same devices, so that there is no limit to their number."""
    return len(set(device_sets(stage, stage.num_replicas))) == 1


def parse_devices(value: Any) -> str:
    """Devices as text, given as "0", "0,1", 0, [0, 1] or "cpu".

    Raises:
        ValueError: it names none, or one twice.
    """
    names = [str(item) for item in value] if isinstance(value, list) else str(parse("str", value)).split(",")
    names = [name.strip() for name in names]
    for name in names:
        if not re.fullmatch(r"\d+|cpu|GPU-[\w-]+|MIG-[\w-]+", name):
            raise ValueError(f'expected device numbers such as "0,1", or cpu; got {value!r}')
    if len(set(names)) < len(names):
        raise ValueError(f"names a device twice: {value!r}")
    return ",".join(names)
