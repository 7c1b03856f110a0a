"""Stages that run on other hosts: waiting until their replicas have joined, and saying so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from app.cluster.registry import Registry
from app.settings.schema import StageConfig

TOLD_S = 5.0
"""How often it is said again what is waited for."""


async def await_external(registry: Registry, stage: StageConfig, progress: Callable[[str], None]) -> None:
    """Return when all replicas of the stage that are expected are up (bounded by the caller)."""
    told, due = "", 0.0
    while lines := list(missing(registry, [stage])):
        (line,) = lines
        if line != told or time.monotonic() > due:
            progress(f"waiting for {line}")
            told, due = line, time.monotonic() + TOLD_S
        with suppress(TimeoutError):
            await asyncio.wait_for(registry.change(), TOLD_S)
    progress(f"stage {stage.stage_id} ({stage.name}): ready on other hosts")


def missing(registry: Registry, stages: list[StageConfig]) -> Iterator[str]:
    """The stages of which too few replicas are up, each with how many, and how far the others are."""
    for stage in stages:
        states = registry.states(stage.stage_id)
        up = states.pop("up", 0)
        if up < stage.num_replicas:
            others = "".join(f", {count} {state}" for state, count in sorted(states.items()) if count)
            yield f"stage {stage.stage_id} ({stage.name}): {up} of {stage.num_replicas} replicas up{others}"
