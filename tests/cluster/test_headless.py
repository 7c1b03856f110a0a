"""A headless replica: a real process that joins a master over tcp, serves, and leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.cluster import headless
from app.cluster.rundir import StartupError
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from app.settings.schema import Settings
from tests.clusters import (
    alive,
    body,
    eventually,
    free_port,
    read,
    running_registry,
    settings,
    text_of,
    wait_gone,
    with_tcp,
)

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, msgspec
from app.cluster import headless as module
from app.cluster.headless import run
from app.settings.schema import Settings

exec(sys.argv[2])
sys.exit(run(msgspec.json.decode(sys.argv[1], type=Settings), 0))
"""


class Headless:
    """The running command; its temporary files go to `scratch`."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path) -> None:
        self.process = process
        self.scratch = scratch

    def signal(self, signum: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(signum)

    async def end(self, limit_s: float = 40) -> tuple[int | None, str]:
        """Its exit code and what it printed."""
        _, printed = await asyncio.wait_for(self.process.communicate(), limit_s)
        return self.process.returncode, printed.decode()


@asynccontextmanager
async def started(scratch: Path, config: Settings, patch: str = "") -> AsyncIterator[Headless]:
    """The command; `patch` changes its `module`, app.cluster.headless."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, msgspec.json.encode(config), patch,
        cwd=ROOT, stderr=asyncio.subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    try:
        yield Headless(process, scratch)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def pipeline(**engine_args: object) -> Settings:
    """A master whose only stage runs elsewhere."""
    config = with_tcp(settings(replicas=0, **engine_args))
    config.master.shutdown_timeout = 10
    return config


@asynccontextmanager
async def served(path: Path, config: Settings) -> AsyncIterator[tuple[Orchestrator, Headless]]:
    scratch = path / "scratch"
    os.mkdir(scratch)
    async with running_registry(path, config):
        orchestrator = Orchestrator(config, f"ipc://{path}/registry.sock")
        await orchestrator.start()
        try:
            async with started(scratch, config) as command:
                assert await orchestrator.wait_ready(40)
                yield orchestrator, command
        finally:
            await orchestrator.stop()


async def test_it_serves_and_on_sigterm_finishes_what_runs(tmp_path: Path) -> None:
    async with served(tmp_path, pipeline(token_s=0.1)) as (orchestrator, command):
        (replica,) = orchestrator.status()[0].replicas
        assert replica.address.startswith("tcp://127.0.0.1:")
        stream = await orchestrator.submit("chat", "r1", body("to the very last word"))
        await anext(stream)
        command.signal()
        await eventually(lambda: not orchestrator.ready)
        with pytest.raises(ApiError) as caught:
            await orchestrator.submit("chat", "r2", body("too late"))
        assert caught.value.status == 503
        assert text_of(await read(stream)).endswith("the very last word ")
        assert (await command.end())[0] == 0
        await eventually(lambda: orchestrator.status()[0].replicas == [])
        assert not alive(replica.pid)
        assert os.listdir(command.scratch) == []


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    config = pipeline()
    config.master.shutdown_timeout = 60
    async with served(tmp_path, config) as (orchestrator, command):
        (replica,) = orchestrator.status()[0].replicas
        stream = await orchestrator.submit("chat", "r1", body("x", hang_after=0))
        command.signal(signal.SIGINT)
        await eventually(lambda: not orchestrator.ready)
        assert alive(replica.pid)
        command.signal(signal.SIGINT)
        assert (await command.end())[0] == 0
        assert not alive(replica.pid)
        await stream.aclose()
        assert os.listdir(command.scratch) == []


async def test_a_replica_that_dies_is_started_again(tmp_path: Path) -> None:
    config = pipeline()
    config.master.heartbeat_timeout = 1
    async with served(tmp_path, config) as (orchestrator, command):
        (replica,) = orchestrator.status()[0].replicas
        os.kill(replica.pid, signal.SIGKILL)
        await eventually(lambda: replica.pid not in [x.pid for x in orchestrator.status()[0].replicas])
        assert await orchestrator.wait_ready(40)
        assert text_of(await read(await orchestrator.submit("chat", "r1", body("here again")))) == "here again "
        command.signal()
        code, printed = await command.end()
        assert code == 0
        assert "stub/0 ended (killed by SIGKILL); starting it again in 0.5 s" in printed


async def test_the_replica_does_not_outlive_a_killed_command(tmp_path: Path) -> None:
    async with served(tmp_path, pipeline()) as (orchestrator, command):
        (replica,) = orchestrator.status()[0].replicas
        command.signal(signal.SIGKILL)
        await asyncio.to_thread(wait_gone, replica.pid)
        await eventually(lambda: orchestrator.status()[0].replicas == [])


async def test_the_wrong_token_is_refused_with_code_3(tmp_path: Path) -> None:
    config = pipeline()
    async with running_registry(tmp_path, config):
        config.master.token = "a guess"
        async with started(tmp_path, config) as command:
            code, printed = await command.end()
    assert code == 3
    assert "the master does not accept our token: --omni-token differs from the master's" in printed


async def test_another_configuration_is_refused_before_it_loads(tmp_path: Path) -> None:
    config = pipeline()
    async with running_registry(tmp_path, config):
        theirs = msgspec.json.decode(msgspec.json.encode(config), type=Settings)
        theirs.stages[0].engine_args = {"load_exit": 7}
        async with started(tmp_path, theirs) as command:
            code, printed = await command.end()
    assert code == 3
    assert "the master refused this replica: its configuration of stage 0 (stub) differs" in printed


async def test_it_waits_for_a_master_that_comes_later(tmp_path: Path) -> None:
    config = pipeline()
    os.mkdir(tmp_path / "scratch")
    async with started(tmp_path / "scratch", config) as command:
        await asyncio.sleep(1)
        assert command.process.returncode is None
        async with running_registry(tmp_path, config) as registry:
            await eventually(lambda: [x.info.state for x in registry._members.values()] == ["up"])
            command.signal()
            assert (await command.end())[0] == 0


async def test_several_replicas_live_and_die_apart(tmp_path: Path) -> None:
    config = pipeline(token_s=0.05)
    config.master.local_replicas, config.master.encrypt = 2, True
    async with served(tmp_path, config) as (orchestrator, command):
        await eventually(lambda: len(orchestrator.status()[0].replicas) == 2)
        first, second = sorted(orchestrator.status()[0].replicas, key=lambda x: x.replica_id)
        assert [first.replica_id, second.replica_id] == [0, 1]
        streams = [await orchestrator.submit("chat", f"r{i}", body("to the very last word")) for i in range(2)]
        os.kill(first.pid, signal.SIGKILL)
        # The parent tells; by heartbeats it would take 30 s.
        await eventually(lambda: len(orchestrator.status()[0].replicas) == 1, 5)
        assert [text_of(await read(stream)) for stream in streams] == ["to the very last word "] * 2
        await eventually(lambda: len(orchestrator.status()[0].replicas) == 2)
        again = min(orchestrator.status()[0].replicas, key=lambda x: x.replica_id)
        assert (again.replica_id, again.pid != first.pid) == (0, True)
        assert alive(second.pid)
        command.signal()
        code, printed = await command.end()
        assert code == 0
        assert "2 replicas for the master at" in printed
        assert "stub/0 ended (killed by SIGKILL); starting it again in 0.5 s" in printed
        assert not any(alive(x.pid) for x in (second, again))


async def test_each_replica_has_its_part_of_the_devices() -> None:
    config = pipeline()
    config.stages[0].devices, config.master.local_replicas = "4,5", 2
    assert [spec.stage.devices for spec in headless._specs(config, config.stages[0])] == ["4", "5"]
    config.stages[0].devices = "4"
    assert [spec.stage.devices for spec in headless._specs(config, config.stages[0])] == ["4", "4"]


async def test_its_replicas_have_the_numbers_that_it_was_given(tmp_path: Path) -> None:
    config = pipeline()
    config.master.local_replicas, config.master.replica_id = 2, 5
    async with served(tmp_path, config) as (orchestrator, command):

        def numbers() -> list[int]:
            return [x.replica_id for x in orchestrator.status()[0].replicas if x.state == "up"]

        await eventually(lambda: numbers() == [5, 6])
        os.kill(orchestrator.status()[0].replicas[1].pid, signal.SIGKILL)
        await eventually(lambda: numbers() == [5])
        await eventually(lambda: numbers() == [5, 6], 20)
        command.signal()
        code, printed = await command.end()
    assert code == 0
    assert "stub/6 ended (killed by SIGKILL)" in printed


async def test_it_is_known_again_to_the_master_that_follows_a_lost_one(tmp_path: Path) -> None:
    config = pipeline(token_s=0.2)
    config.master.local_replicas = 2
    os.mkdir(tmp_path / "scratch")
    async with started(tmp_path / "scratch", config) as command:
        known = []
        for _ in range(2):
            async with running_registry(tmp_path, config) as registry:
                await eventually(lambda: registry.states(0)["up"] == 2, 40)
                known.append([(x.info.replica_id, x.info.pid) for x in registry._members.values()])
        assert sorted(known[0]) == sorted(known[1])
        command.signal()
        assert (await command.end())[0] == 0


async def test_a_load_that_takes_too_long_is_ended_and_after_many_the_command_too(tmp_path: Path) -> None:
    config = pipeline(load_s=60)
    config.master.stage_init_timeout = 0.3
    async with running_registry(tmp_path, config), started(tmp_path, config, "module.BACKOFF_S = (0.1,)") as command:
        code, printed = await command.end()
    assert code == 1
    assert printed.count("stub/0 was not ready within --stage-init-timeout 0.3 s") == 2
    assert "it is not started again" in printed


async def test_the_siblings_of_one_that_was_given_up_go_on(tmp_path: Path) -> None:
    config = pipeline()
    config.master.local_replicas = 2
    async with (
        running_registry(tmp_path, config) as registry,
        started(tmp_path, config, "module.BACKOFF_S = ()") as command,
    ):
        await eventually(lambda: registry.states(0)["up"] == 2, 40)
        first, second = [x.info.pid for x in registry._members.values()]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: registry.states(0) == {"up": 1, "down": 1})
        assert command.process.returncode is None
        os.kill(second, signal.SIGKILL)
        code, printed = await command.end()
    assert code == 1
    assert printed.count("it is not started again") == 2


def test_an_unknown_stage_is_an_error() -> None:
    with pytest.raises(StartupError, match=r"no stage 5: the pipeline has \[0\]"):
        headless.run(pipeline(), 5)


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("192.0.2.1", "", "192.0.2.1, which other machines reach: set --omni-token"),
        ("no-such-host.invalid", "secret", "--omni-replica-address no-such-host.invalid"),
    ],
)
def test_where_it_would_listen_is_judged_first(address: str, token: str, words: str) -> None:
    config = with_tcp(settings(), token)
    config.master.replica_address = address
    with pytest.raises(StartupError, match=words):
        headless.run(config, 0)


def test_a_master_without_a_route_is_an_error() -> None:
    config = settings()
    config.master.address, config.master.port = "no-such-host.invalid", free_port()
    with pytest.raises(StartupError, match=r"cannot find a route to the master no-such-host\.invalid"):
        headless.run(config, 0)
