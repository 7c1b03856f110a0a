"""LoRA adapters on every replica, those that start later included: real processes, the stub engine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from app.cluster import messages as m
from app.pipeline.adapters import TASK, load_adapter, unload_adapter
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from tests.clusters import cluster, eventually, settings


async def loaded(orchestrator: Orchestrator) -> list[list[str]]:
    """What each replica has."""
    answers = await orchestrator.call_stage(TASK, "list_adapters", b"{}")
    return [json.loads(answer) for answer in answers if isinstance(answer, bytes)]


def names(orchestrator: Orchestrator) -> list[str]:
    return [adapter.name for adapter in orchestrator.membership.adapters]


async def test_every_replica_loads_and_unloads_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, adapters=True)) as (orchestrator, _):
        await load_adapter(orchestrator, "a", "/a", is_3d=False, replace=False)
        assert await loaded(orchestrator) == [["a"], ["a"]]
        assert names(orchestrator) == ["a"]
        await load_adapter(orchestrator, "a", "/other", is_3d=False, replace=True)
        assert orchestrator.membership.adapters == [m.Adapter(0, "a", "/other")]
        await unload_adapter(orchestrator, "a")
        assert await loaded(orchestrator) == [[], []]
        assert names(orchestrator) == []


async def test_one_that_cannot_be_loaded_is_loaded_nowhere(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, adapters=True)) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            await load_adapter(orchestrator, "a", "/nope", is_3d=False, replace=False)
        assert (caught.value.status, caught.value.body.error.param) == (400, "lora_path")
        assert await loaded(orchestrator) == [[], []]
        assert names(orchestrator) == []


async def test_a_restarted_replica_has_them_before_it_is_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(adapters=True)) as (orchestrator, _):
        await load_adapter(orchestrator, "a", "/a", is_3d=False, replace=False)
        (replica,) = orchestrator.membership.replicas
        os.kill(replica.pid, signal.SIGKILL)
        await eventually(lambda: not orchestrator.ready)
        assert await orchestrator.wait_ready(30)
        assert await loaded(orchestrator) == [["a"]]


async def test_a_model_without_adapters(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            await load_adapter(orchestrator, "a", "/a", is_3d=False, replace=False)
        assert (caught.value.status, caught.value.body.error.code) == (404, "unsupported_task")


async def test_an_unknown_adapter(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(adapters=True)) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            await unload_adapter(orchestrator, "a")
        assert (caught.value.status, caught.value.body.error.param) == (404, "lora_name")
