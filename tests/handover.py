"""Pipelines of stub stages that hand tensors on, and replicas that take this host for another one."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from app.cluster import messages as m
from app.engines.spec import ReplicaSpec
from app.engines.stubtensors import MAKE, TAKE
from app.pipeline.chain import TensorChain
from app.pipeline.edge import Part
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.request import CREDIT_WINDOW, RequestStream
from app.settings.schema import Settings, StageConfig
from app.telemetry.metrics import Metrics
from app.telemetry.requests import StageMeter
from tests.clusters import held_refs, settings

ROOT = Path(__file__).parents[1]
THRESHOLD = 4096
_ELSEWHERE = """
from app.cluster import identity
identity.host_identity = lambda: "another host"
from app.engines import worker
worker.main()
"""


def pipeline(*replicas: int, **engine_args: Any) -> Settings:
    """Stages "s0", "s1", ... with so many replicas each; each feeds the next. Tensors above 4 KiB are large."""
    config = settings()
    config.stages = [
        StageConfig(
            stage_id=position,
            name=f"s{position}",
            kind="stub",
            model="stub",
            engine_args={"chats": False, "produces": position == 0, "consumes": position > 0, **engine_args},
            entry=position == 0,
            num_replicas=count,
            devices="cpu",
            shm_threshold_bytes=THRESHOLD,
            sources=[position - 1] if position else [],
        )
        for position, count in enumerate(replicas)
    ]
    return config


def script(frames: int | None = None, *, tensors: dict[str, Any] | None = None, **stub: Any) -> bytes:
    """What one stage shall do: the `tensors` that it makes, `frames` of them, and what else the stub does."""
    return json.dumps({"stub": {"tokens": frames, **stub}, "tensors": tensors or {}}).encode()


def chain(
    orchestrator: Orchestrator, *scripts: bytes, request_id: str = "r", timeout_s: float = math.inf
) -> TensorChain:
    """A request to the first stages of the pipeline, one for each script, not started."""
    parts = []
    for position, (pool, body) in enumerate(zip(orchestrator._graph.pools.values(), scripts, strict=False)):
        submit = m.Submit(request_id, TAKE if position else MAKE, "", CREDIT_WINDOW)
        stream = RequestStream(pool, submit, body, 0, StageMeter(Metrics(), position))
        parts.append(Part(pool.stage.name, stream, timeout_s))
    return TensorChain(parts)


async def read(request: TensorChain, texts: list[str] | None = None) -> list[str]:
    """Start it and read it to its end: the text of every stage, in `texts` as far as it comes."""
    texts = [] if texts is None else texts
    texts += [""] * len(request._parts)
    try:
        await request.start()
        async for position, events in request:
            texts[position] += "".join(event.text for event in events if isinstance(event, m.Delta))
    finally:
        await request.aclose()
    return texts


def said(frames: int, rows: int = 1, width: int = 8, first_rows: int = 0) -> str:
    """What a stage says that was handed all that."""
    return "".join(f"{number}:{first_rows if first_rows and not number else rows}x{width} " for number in range(frames))


def replicas(orchestrator: Orchestrator) -> list[int]:
    """The processes of all stages."""
    return [replica.pid for stage in orchestrator.status() for replica in stage.replicas]


def held(orchestrator: Orchestrator) -> list[str]:
    """What they hold for others."""
    return [name for pid in replicas(orchestrator) for name in held_refs(pid)]


@asynccontextmanager
async def elsewhere(config: Settings, stage_id: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica of the stage that joined over tcp and knows the processes of this host by nothing but their address."""
    spec = ReplicaSpec(
        stage=config.stages[stage_id],
        replica_id=-1,
        registry=f"tcp://127.0.0.1:{config.master.port}",
        bind="tcp://127.0.0.1:*",
        token=config.master.token,
        served_model_names=config.served_model_names,
        shutdown_timeout=config.master.shutdown_timeout,
        slow_client_timeout=config.server.slow_client_timeout_s,
        parent_pid=os.getpid(),
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ELSEWHERE, cwd=ROOT, stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
