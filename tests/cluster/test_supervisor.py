"""Local replicas are started in groups, restarted with pauses, and all ended. Real processes, the stub engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cluster import messages as m
from app.cluster import supervisor as module
from app.cluster.rundir import StartupError
from app.cluster.supervisor import Supervisor, group_by_devices
from app.pipeline.balance import Balancer
from app.pipeline.connection import Stream
from app.pipeline.orchestrator import Orchestrator
from app.settings.schema import Settings, StageConfig, stage_digest
from tests.clusters import (
    Peer,
    alive,
    body,
    cluster,
    eventually,
    free_port,
    peer,
    read,
    registration,
    running_registry,
    settings,
    text_of,
)


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


# ------------------------------------------------------------------------------------------------ stages elsewhere


def split(**engine_args: Any) -> Settings:
    """A server that runs stage 0 itself and waits for stage 1."""
    config = settings(**engine_args)
    config.stages = stages("cpu", "cpu", engine_args=engine_args)
    config.master.stage_id = 0
    return config


async def test_it_waits_for_stages_of_other_hosts_and_says_so(tmp_path: Path) -> None:
    config, lines = split(), list[str]()
    config.stages[1].num_replicas = 2
    async with running_registry(tmp_path, config) as registry:
        supervisor = Supervisor(config, registry, tmp_path)
        start = asyncio.create_task(supervisor.start(lines.append))
        await eventually(lambda: "waiting for stage 1 (s1): 0 of 2 replicas up" in lines)
        async with other(tmp_path, config) as one, other(tmp_path, config) as two:
            await eventually(lambda: "waiting for stage 1 (s1): 0 of 2 replicas up, 2 starting" in lines)
            one.send(m.Ready(m.Capabilities()))
            await eventually(lambda: "waiting for stage 1 (s1): 1 of 2 replicas up, 1 starting" in lines)
            assert not start.done()
            two.send(m.Ready(m.Capabilities()))
            await asyncio.wait_for(start, 20)
        await supervisor.stop(grace_s=2)
    assert "stage 1 (s1): ready on other hosts" in lines
    assert not [line for line in lines if "loading" in line and "stage 1" in line]


@asynccontextmanager
async def other(path: Path, config: Settings) -> AsyncIterator[Peer]:
    """A replica of stage 1 on another host."""
    address = f"tcp://10.0.0.1:{free_port()}"
    digest = stage_digest(config.stages[1])
    async with peer(f"ipc://{path}/registry.sock") as replica:
        replica.send(registration(config, model="m", stage_id=1, replica_id=-1, address=address, config_digest=digest))
        yield replica


async def test_stages_that_do_not_come_are_named(tmp_path: Path) -> None:
    config = split()
    config.master.init_timeout = 1
    words = r"not ready within --init-timeout 1 s: .*stage 1 \(s1\): 0 of 1 replicas up$"
    with pytest.raises(StartupError, match=words):
        await progress_of(tmp_path, config)


# ------------------------------------------------------------------------------------------------ scaling


def of(orchestrator: Orchestrator) -> list[tuple[int, str]]:
    return [(x.replica_id, x.state) for x in orchestrator.membership.replicas]


async def scale(orchestrator: Orchestrator, replicas: int) -> None:
    await orchestrator.tell_master(m.Scale(0, replicas), lambda x: (0, replicas) in x.wanted)


async def test_replicas_are_added_and_let_go_while_requests_run(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(token_s=0.05)) as (orchestrator, _):
        await scale(orchestrator, 3)
        await eventually(lambda: of(orchestrator) == [(0, "up"), (1, "up"), (2, "up")], 60)
        for number in range(9):
            orchestrator._graph.pools[0]._balancer = Balancer("round-robin")
            assert text_of(await read(await orchestrator.submit("chat", f"r{number}", body("x")))) == "x "
        connections = orchestrator._graph.pools[0].connections
        running = [x.submit(m.Submit(f"s{i}", "chat"), body("a b c d e f g h")) for i, x in enumerate(connections)]
        pids = [x.info.pid for x in connections]
        await scale(orchestrator, 1)
        await eventually(lambda: of(orchestrator)[0] == (0, "up") and "up" not in dict(of(orchestrator)[1:]).values())
        texts = [await whole(stream) for stream in running]
        assert texts == ["a b c d e f g h "] * 3, "those that leave finish what runs there"
        await eventually(lambda: of(orchestrator) == [(0, "up")])
        assert [alive(pid) for pid in pids] == [True, False, False]


async def whole(stream: Stream) -> str:
    events: list[m.AnyEvent] = []
    while not (events and isinstance(events[-1], m.Done)):
        events += await stream.next_batch()
    return text_of(events)


async def test_the_master_that_follows_runs_as_many(tmp_path: Path) -> None:
    config = settings(replicas=2)
    async with cluster(tmp_path, config) as (orchestrator, _):
        await scale(orchestrator, 1)
        await eventually(lambda: of(orchestrator) == [(0, "up")])
    async with cluster(tmp_path, config) as (orchestrator, _):
        assert of(orchestrator) == [(0, "up")]
        assert orchestrator.membership.wanted == [(0, 1)]


async def test_a_new_replica_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.1,))
    config = settings()
    async with cluster(tmp_path, config) as (orchestrator, _):
        config.stages[0].engine_args["load_exit"] = 7
        await scale(orchestrator, 2)
        await eventually(lambda: "failed to start" in caplog.text)
        config.stages[0].engine_args["load_exit"] = -1
        await eventually(lambda: of(orchestrator) == [(0, "up"), (1, "up")])
