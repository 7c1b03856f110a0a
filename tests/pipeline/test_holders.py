"""Requests about what one replica holds go to that replica: real processes, the stub engine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from app.cluster import messages as m
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from tests.clusters import cluster, eventually, read, settings


def instances(orchestrator: Orchestrator) -> list[str]:
    return [replica.capabilities.instance for replica in orchestrator.membership.replicas]


async def ask(orchestrator: Orchestrator, instance: str) -> str:
    """The name of the engine that answers."""
    events = await read(await orchestrator.submit("held", "r", b"{}", instance=instance))
    (document,) = [event for event in events if isinstance(event, m.Document)]
    name: str = json.loads(document.body)
    return name


async def test_each_replica_answers_for_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=3, holds=True)) as (orchestrator, _):
        held = instances(orchestrator)
        assert len(set(held)) == 3
        assert [await ask(orchestrator, instance) for instance in held * 2] == held * 2
        assert await ask(orchestrator, "") in held
        assert all(orchestrator.holds("held", instance) for instance in held)


async def test_what_a_lost_replica_held_is_gone(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(holds=True)) as (orchestrator, _):
        (before,) = instances(orchestrator)
        (replica,) = orchestrator.membership.replicas
        os.kill(replica.pid, signal.SIGKILL)
        await eventually(lambda: not orchestrator.ready)
        assert await orchestrator.wait_ready(30)
        assert not orchestrator.holds("held", before)
        with pytest.raises(ApiError) as caught:
            await ask(orchestrator, before)
        assert (caught.value.status, caught.value.body.error.code) == (404, "not_held")


async def test_a_task_that_nobody_answers(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            orchestrator.holds("held", "00000000")
        assert caught.value.status == 404
