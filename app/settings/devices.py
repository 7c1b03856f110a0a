"""Which devices a replica computes on."""

from __future__ import annotations

from app.settings.schema import StageConfig

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def world_size(stage: StageConfig) -> int:
    """How many devices one replica of a stage needs."""
    world = 1
    for size in _SIZES:
        world *= int(stage.engine_args.get(size) or 1)
    return world


def replica_devices(stage: StageConfig, replica_id: int) -> str:
    """The devices of one local replica: its part where there are enough for each to have its own, else all of them."""
    devices, world = stage.devices.split(","), world_size(stage)
    if replica_id < 0 or len(devices) != world * stage.num_replicas:
        return stage.devices
    return ",".join(devices[replica_id * world : (replica_id + 1) * world])
