"""The section of bench.gpu_check for robots' policies."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bench.gpu_finding import NO_GPU, Finding, has_gpu

_CHUNKS = 20


def policy() -> Iterator[Finding]:
    """A policy of the type pi0: chunks of actions a second, and how far they are from the CPU's."""
    from tests.tiny_policy import build

    with tempfile.TemporaryDirectory(prefix="check") as directory:
        yield from asyncio.run(_acted(build(Path(directory))))


async def _acted(model: Path) -> list[Finding]:
    import numpy as np

    found, actions = [], {}
    for device in ("cpu", "") if has_gpu() else ("cpu",):
        actions[device], rate = await _on(device, model)
        found.append(Finding(f"pi0 on {device or 'the accelerator'}", f"{rate:.1f} chunks of actions a second"))
    if not has_gpu():
        return [*found, Finding("pi0 on an accelerator", NO_GPU, "not run")]
    apart = np.abs(actions["cpu"] - actions[""]).max()
    state: Literal["ok", "failed"] = "ok" if apart < 0.01 else "failed"
    return [*found, Finding("pi0: from the CPU's actions", f"at most {apart:.1e}", state)]


async def _on(device: str, model: Path) -> tuple[Any, float]:
    from app.engines.policy.engine import PolicyEngine
    from app.settings.schema import StageConfig
    from tests.engines.policy.asking import ask, observation

    engine = PolicyEngine(
        StageConfig(
            stage_id=0,
            name="policy",
            kind="policy",
            model=str(model),
            devices=device,
            engine_args={"dtype": "float32"},
        )
    )
    await engine.start()
    try:
        first = await ask(engine, observation(seed=1))
        begin = time.perf_counter()
        for _ in range(_CHUNKS):
            await ask(engine, observation())
        return first["actions"], _CHUNKS / (time.perf_counter() - begin)
    finally:
        await engine.stop()
