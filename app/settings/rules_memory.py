"""Stages that together want more of a GPU than there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.settings import platforms
from app.settings.devices import replica_devices
from app.settings.schema import StageConfig

_ROUNDING = 1e-6


def crowded(stages: Sequence[StageConfig]) -> Iterator[str]:
    """One sentence for each GPU of which stages are given more than all: vLLM takes each share of the whole GPU.

    Only what may run on this machine can be judged: a stage under `omni-app headless` has the GPUs of another.
    """
    if platforms.current() == "cpu":
        return
    wants: dict[str, list[tuple[str, float]]] = {}
    for stage in stages:
        share = stage.engine_args.get("gpu_memory_utilization")
        if share is None or stage.devices == "cpu":
            continue
        for replica in range(stage.num_replicas):
            for device in (replica_devices(stage, replica) or "0").split(","):
                wants.setdefault(device, []).append((stage.name, float(share)))
    for device, shares in wants.items():
        if sum(share for _, share in shares) > 1 + _ROUNDING:
            told = ", ".join(f"{name} {share:g}" for name, share in shares)
            yield (
                f"device {device} is given to several stages whose gpu_memory_utilization is more than 1 together "
                f"({told}): the last of them will find too little memory"
            )
