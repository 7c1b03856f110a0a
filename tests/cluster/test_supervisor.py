"""Local replicas are started in groups, restarted with pauses, and all ended. Real processes, the stub engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from app.cluster import supervisor as module
from app.cluster.rundir import StartupError
from app.cluster.supervisor import Supervisor, group_by_devices
from app.settings.schema import Settings, StageConfig
from tests.clusters import alive, cluster, eventually, running_registry, settings


def stages(*devices: str, **fields: Any) -> list[StageConfig]:
    return [
        StageConfig(stage_id=i, name=f"s{i}", kind="stub", model="m", devices=x, **fields)
        for i, x in enumerate(devices)
    ]


@pytest.mark.parametrize(
    ("devices", "groups"),
    [
        (["0", "1"], [[0], [1]]),
        (["0", "0"], [[0, 1]]),
        (["0,1", "1,2", "2, 3", "4"], [[0, 1, 2], [3]]),
        (["0", "1", "0,1"], [[0, 1, 2]]),
        (["cpu", "cpu", "0"], [[0], [1], [2]]),
        (["", "1", "cpu"], [[0, 1], [2]]),
        (["1", "2", ""], [[0, 1, 2]]),
        (["", ""], [[0, 1]]),
    ],
)
def test_stages_that_share_a_device_form_a_group(devices: list[str], groups: list[list[int]]) -> None:
    found = [[stage.stage_id for stage in group] for group in group_by_devices(stages(*devices))]
    assert sorted(found) == groups


async def progress_of(path: Path, config: Settings) -> list[str]:
    lines: list[str] = []
    async with running_registry(path, config) as registry:
        supervisor = Supervisor(config, registry, path)
        try:
            await supervisor.start(lines.append)
        finally:
            await supervisor.stop(grace_s=2)
    return lines


@pytest.mark.parametrize(("devices", "together"), [(["0", "0"], False), (["0", "1"], True)])
async def test_a_group_starts_one_after_another_and_groups_at_once(
    tmp_path: Path, devices: list[str], together: bool
) -> None:
    config = settings()
    config.stages = stages(*devices, engine_args={"load_s": 0.3})
    lines = await progress_of(tmp_path, config)
    steps = [line.split(": ")[1].split()[0] for line in lines]
    assert steps == (["loading", "loading", "ready", "ready"] if together else ["loading", "ready"] * 2)
    assert {line.split(":")[0] for line in lines} == {"stage 0 (s0/0)", "stage 1 (s1/0)"}


async def test_pauses_grow_while_it_dies_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.1, 0.2, 0.3))
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        for _ in range(4):
            assert await orchestrator.wait_ready(40)
            os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGKILL)
            await eventually(lambda: not orchestrator.ready)
        assert await orchestrator.wait_ready(40)
    warnings = [x.getMessage() for x in caplog.records if "starting it again" in x.getMessage()]
    assert [x.split(" in ")[1] for x in warnings] == ["0.1 s", "0.2 s", "0.3 s", "0.3 s"]
    assert all("stub/0 ended (killed by SIGKILL)" in x for x in warnings)


async def test_a_steady_life_ends_the_back_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.1, 20.0))
    monkeypatch.setattr(module, "STEADY_S", 0.0)
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        for _ in range(2):
            os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGKILL)
            await eventually(lambda: not orchestrator.ready)
            assert await orchestrator.wait_ready(40)
    assert "in 20 s" not in caplog.text


async def test_a_restart_that_fails_is_explained_by_its_own_cause_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.1,))
    config = settings()
    async with cluster(tmp_path, config) as (orchestrator, _):
        config.stages[0].engine_args["load_exit"] = 7
        os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGKILL)
        await eventually(lambda: "failed to start" in caplog.text)
        config.stages[0].engine_args["load_exit"] = -1
        assert await orchestrator.wait_ready(40)
    (failure, *_) = [x.getMessage() for x in caplog.records if "failed to start" in x.getMessage()]
    assert "stage 0 (stub/0, model stub) failed to start (exit code 7); its last lines" in failure
    assert "SIGKILL" not in failure


async def test_stop_leaves_no_process(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, token_s=0.05)) as (orchestrator, _):
        pids = [x.pid for x in orchestrator.status()[0].replicas]
        assert len(pids) == 2
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


async def test_stop_while_loading_ends_the_start(tmp_path: Path) -> None:
    config = settings(load_s=60)
    async with running_registry(tmp_path, config) as registry:
        supervisor = Supervisor(config, registry, tmp_path)
        start = asyncio.create_task(supervisor.start(lambda line: None))
        await eventually(lambda: len(registry._members) == 1)
        (member,) = registry._members.values()
        start.cancel()
        await asyncio.wait([start])
        await supervisor.stop(grace_s=2)
        assert not alive(member.info.pid)


async def test_all_stages_together_have_a_limit(tmp_path: Path) -> None:
    config = settings(load_s=60)
    config.master.init_timeout = 0.5
    with pytest.raises(StartupError, match=r"--init-timeout 0\.5 s"):
        await progress_of(tmp_path, config)


async def test_one_stage_that_fails_fails_the_start_without_waiting_for_the_others(tmp_path: Path) -> None:
    config = settings()
    config.stages = stages("0", "1")
    config.stages[0].engine_args = {"load_s": 60}
    config.stages[1].engine_args = {"load_error": "no such checkpoint"}
    with pytest.raises(StartupError, match=r"stage 1 .*\(exit code 1\): RuntimeError: no such checkpoint"):
        await asyncio.wait_for(progress_of(tmp_path, config), 40)
