"""The replica program: a real process between a real registry and bare clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.local import LocalReplica
from app.cluster.process import python_command
from app.cluster.registry import Registry
from app.engines.spec import EXIT_FAILED, EXIT_REFUSED
from app.engines.worker import Replica
from app.settings.schema import Settings
from tests.clusters import (
    TOKEN,
    Peer,
    alive,
    body,
    eventually,
    peer,
    replica_spec,
    running_registry,
    settings,
    text_of,
    wait_gone,
)

ROOT = Path(__file__).parents[2]
# Starts a replica as LocalReplica does, prints its pid, waits to be killed. argv: spec, both ends of its lifeline.
PARENT = """
import os, subprocess, sys, time, msgspec
from app.cluster.process import python_command
from app.engines.spec import ReplicaSpec

spec = msgspec.json.decode(sys.argv[1], type=ReplicaSpec)
spec.parent_pid = os.getpid()
read_end, write_end = map(int, sys.argv[2:])
child = subprocess.Popen(python_command("app.engines.worker"), stdin=read_end, start_new_session=True)
os.write(write_end, msgspec.json.encode(spec) + b"\\n")
print(child.pid, flush=True)
time.sleep(60)
"""


def with_token(**engine_args: object) -> Settings:
    config = settings(**engine_args)
    config.master.token = TOKEN
    return config


@asynccontextmanager
async def spawned(path: Path, config: Settings) -> AsyncIterator[LocalReplica]:
    replica = LocalReplica(replica_spec(path, config))
    await replica.spawn()
    try:
        yield replica
    finally:
        await replica.stop(grace_s=3)


@asynccontextmanager
async def up(path: Path, config: Settings) -> AsyncIterator[tuple[Registry, LocalReplica]]:
    async with running_registry(path, config) as registry, spawned(path, config) as replica:
        await asyncio.wait_for(registry.wait_up((0, 0)), 30)
        yield registry, replica


def data_address(path: Path) -> str:
    return f"ipc://{path}/r0-0.sock"


async def events_until_end(client: Peer, request_id: str = "r") -> list[m.AnyEvent]:
    events: list[m.AnyEvent] = []
    while not events or not isinstance(events[-1], m.Done | m.Failed):
        events += [event for name, event in (await client.get(m.Events)).items if name == request_id]
    return events


def running(registry: Registry) -> int:
    return sum(member.info.load.running for member in registry._members.values())


async def test_it_registers_loads_and_answers(tmp_path: Path) -> None:
    async with up(tmp_path, with_token()) as (registry, replica), peer(data_address(tmp_path), TOKEN) as client:
        (info,) = [member.info for member in registry._members.values()]
        assert (info.pid, info.state, info.capabilities.tasks) == (replica.pid, "up", ["chat", "completion"])
        client.send(m.Submit("r", "chat"), body("hello there"))
        assert text_of(await events_until_end(client)) == "hello there "
        client.send(m.Call("1", "tokenize"), body("a b c"))
        assert (await client.get(m.Result)).failed is None
        assert msgspec.json.decode(client.frames[-1][1].bytes)["count"] == 3
        client.send(m.Call("2", "fly"), b"{}")
        assert (await client.get(m.Result)).failed == m.Failed(404, "this engine has no fly", "not_found_error")
        client.send(m.Call("3", "tokenize"), b"not json")
        failed = (await client.get(m.Result)).failed
        assert failed is not None
        assert failed.status == 500


async def test_a_client_with_the_wrong_token_is_not_heard(tmp_path: Path) -> None:
    async with up(tmp_path, with_token()), peer(data_address(tmp_path), "a guess") as intruder:
        intruder.send(m.Submit("r", "chat"), body("let me in"))
        await asyncio.sleep(0.3)
        assert intruder.heard == []


async def test_what_is_no_message_harms_nobody(tmp_path: Path) -> None:
    async with up(tmp_path, with_token()), peer(data_address(tmp_path), TOKEN) as client:
        client.send_raw(b"\xc1")
        client.send_raw(m.encode(m.Welcome(1, 1)))
        client.send(m.Submit("empty", "chat"))  # its body is missing
        assert isinstance((await events_until_end(client, "empty"))[-1], m.Failed)
        client.send(m.Submit("r", "chat"), body("still here"))
        assert text_of(await events_until_end(client)) == "still here "


async def test_a_mismatch_is_refused_before_the_load(tmp_path: Path) -> None:
    config = with_token()
    async with running_registry(tmp_path, config), spawned(tmp_path, with_token(load_exit=7)) as replica:
        assert await asyncio.wait_for(replica.wait(), 30) == EXIT_REFUSED
        assert "the master refused this replica: its configuration of stage 0" in replica.tail()


async def test_the_wrong_token_ends_it_before_the_load(tmp_path: Path) -> None:
    config = with_token(load_exit=7)
    async with running_registry(tmp_path, config):
        config.master.token = "a guess"
        async with spawned(tmp_path, config) as replica:
            assert await asyncio.wait_for(replica.wait(), 30) == EXIT_REFUSED
            assert "does not accept our token" in replica.tail()


async def test_a_socket_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    config = with_token()
    replica = LocalReplica(replica_spec(tmp_path, config))
    replica.spec.bind = f"ipc://{tmp_path}/no/such/directory/r.sock"
    async with running_registry(tmp_path, config):
        await replica.spawn()
        assert await asyncio.wait_for(replica.wait(), 30) == EXIT_FAILED
        assert f"cannot listen on {replica.spec.bind}" in replica.tail()
        await replica.stop(grace_s=1)


async def test_it_stays_up_when_its_master_is_replaced(tmp_path: Path) -> None:
    config = with_token(token_s=0.05)
    first = Registry(config, f"ipc://{tmp_path}/registry.sock")
    await first.start()
    async with spawned(tmp_path, config) as replica, peer(data_address(tmp_path), TOKEN) as client:
        await asyncio.wait_for(first.wait_up((0, 0)), 30)
        client.send(m.Submit("r", "chat"), body(tokens=20))
        await client.get(m.Events)
        await first.stop()
        async with running_registry(tmp_path, config) as second:
            await asyncio.wait_for(second.wait_up((0, 0)), 30)
            (info,) = [member.info for member in second._members.values()]
            assert (info.pid, info.capabilities.tasks) == (replica.pid, ["chat", "completion"])
            assert isinstance((await events_until_end(client))[-1], m.Done), "what ran was not disturbed"


async def test_the_work_of_a_dead_api_worker_is_cancelled(tmp_path: Path) -> None:
    config = with_token(token_s=0.05)
    child = await asyncio.create_subprocess_exec("sleep", "60")
    async with (
        up(tmp_path, config) as (registry, _),
        peer(data_address(tmp_path), TOKEN, b"doomed") as client,
        peer(f"ipc://{tmp_path}/registry.sock", TOKEN) as worker,
    ):
        worker.send(m.Subscribe(m.PROTOCOL, "doomed", child.pid))
        await worker.get(m.Membership)
        client.send(m.Submit("r", "chat"), body(tokens=10_000))
        await eventually(lambda: running(registry) == 1)
        child.kill()
        await child.wait()
        await eventually(lambda: running(registry) == 0)


async def test_the_work_of_a_silent_client_is_cancelled_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that vanished has no pid to watch; one that was only stopped must not wait for ever."""
    config = with_token(token_s=0.05)
    async with (
        running_registry(tmp_path, config) as registry,
        in_process(tmp_path, config),
        peer(data_address(tmp_path), TOKEN) as silent,
        peer(data_address(tmp_path), TOKEN) as talkative,
    ):
        await asyncio.wait_for(registry.wait_up((0, 0)), 20)
        for client in (silent, talkative):
            client.send(m.Submit("r", "chat"), body(tokens=10_000))
        await eventually(lambda: running(registry) == 2)
        monkeypatch.setattr(m, "CLIENT_LEASE_S", 2.0)
        ended = asyncio.create_task(events_until_end(silent))
        async with asyncio.timeout(30):
            while not ended.done():
                talkative.send(m.Ping())
                await asyncio.sleep(0.1)
        last = ended.result()[-1]
        assert isinstance(last, m.Failed)
        assert last.code == m.REPLICA_LOST
        await eventually(lambda: running(registry) == 1)


@asynccontextmanager
async def in_process(path: Path, config: Settings) -> AsyncIterator[Replica]:
    """A replica on the loop of the test, where its times can be changed."""
    replica = Replica(replica_spec(path, config))
    serving = asyncio.create_task(replica.serve())
    try:
        yield replica
    finally:
        replica.leave(0)
        assert await serving == 0


async def test_sigterm_finishes_what_runs_and_takes_no_more(tmp_path: Path) -> None:
    config = with_token(token_s=0.05)
    async with up(tmp_path, config) as (registry, replica), peer(data_address(tmp_path), TOKEN) as client:
        client.send(m.Submit("r", "chat"), body(tokens=15))
        await client.get(m.Events)
        os.kill(replica.pid, signal.SIGTERM)
        await eventually(lambda: [x.info.state for x in registry._members.values()] == ["draining"])
        client.send(m.Submit("late", "chat"), body("x"))
        client.send(m.Call("1", "tokenize"), body("x"))
        events = [x async for x in _pairs(client, until="r")]
        (refusal,) = [event for name, event in events if name == "late"]
        assert isinstance(refusal, m.Failed)
        assert (refusal.status, refusal.code) == (503, m.REPLICA_LEAVES)
        assert isinstance(events[-1][1], m.Done)
        assert await asyncio.wait_for(replica.wait(), 30) == 0
        await eventually(lambda: not registry._members)


async def _pairs(client: Peer, until: str) -> AsyncIterator[tuple[str, m.AnyEvent]]:
    while True:
        for name, event in (await client.get(m.Events)).items:
            yield name, event
            if name == until and isinstance(event, m.Done | m.Failed):
                return


async def test_asked_again_it_still_finishes_what_runs(tmp_path: Path) -> None:
    """Who stops a whole control group sends SIGTERM to the replica, and the master does the same."""
    async with (
        up(tmp_path, with_token(token_s=0.1)) as (registry, replica),
        peer(data_address(tmp_path), TOKEN) as client,
    ):
        client.send(m.Submit("r", "chat"), body("one two three four five six"))
        await client.get(m.Events)
        os.kill(replica.pid, signal.SIGTERM)
        await eventually(lambda: [x.info.state for x in registry._members.values()] == ["draining"])
        os.kill(replica.pid, signal.SIGTERM)
        registry.drain((0, 0), 20)
        assert text_of(await events_until_end(client)).endswith("five six ")
        assert await asyncio.wait_for(replica.wait(), 30) == 0


async def test_clients_are_not_held_responsible_for_the_time_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_token(token_s=0.1)
    async with up(tmp_path, config) as (_, replica), peer(data_address(tmp_path), TOKEN) as client:
        client.send(m.Submit("r", "chat"), body(" ".join(["word"] * 12)))
        await client.get(m.Events)
        os.kill(replica.pid, signal.SIGSTOP)
        await asyncio.sleep(m.CLIENT_LEASE_S + 1)
        os.kill(replica.pid, signal.SIGCONT)
        assert isinstance((await events_until_end(client))[-1], m.Done)


async def test_what_does_not_finish_in_time_is_cut_off(tmp_path: Path) -> None:
    config = with_token()
    config.master.shutdown_timeout = 0.5
    async with up(tmp_path, config) as (_, replica), peer(data_address(tmp_path), TOKEN) as client:
        client.send(m.Submit("r", "chat"), body("x", hang_after=0))
        await client.get(m.Events)
        os.kill(replica.pid, signal.SIGTERM)
        assert await asyncio.wait_for(replica.wait(), 30) == 0


async def test_sigterm_while_loading_ends_it_at_once(tmp_path: Path) -> None:
    config = with_token(load_s=60)
    async with running_registry(tmp_path, config) as registry, spawned(tmp_path, config) as replica:
        await eventually(lambda: len(registry._members) == 1)
        os.kill(replica.pid, signal.SIGTERM)
        assert await asyncio.wait_for(replica.wait(), 30) == 0


async def test_it_ends_when_its_lifeline_ends(tmp_path: Path) -> None:
    config = with_token()
    async with running_registry(tmp_path, config) as registry:
        child = await asyncio.create_subprocess_exec(
            *python_command("app.engines.worker"), stdin=subprocess.PIPE, start_new_session=True
        )
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(replica_spec(tmp_path, config)) + b"\n")
        await asyncio.wait_for(registry.wait_up((0, 0)), 30)
        child.stdin.close()
        assert await asyncio.wait_for(child.wait(), 30) == 0
        await eventually(lambda: not registry._members)


@pytest.mark.parametrize("lifeline", ["pipe", "held open elsewhere"])
async def test_it_does_not_outlive_a_killed_parent(tmp_path: Path, lifeline: str) -> None:
    """Busy, and also where somebody else still holds the other end of its standard input."""
    config = with_token(token_s=0.05)
    spec = msgspec.json.encode(replica_spec(tmp_path, config))
    ours, theirs = os.pipe()
    async with running_registry(tmp_path, config) as registry:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, spec, str(ours), str(theirs),
            cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[ours, theirs],
        )  # fmt: skip
        if lifeline == "pipe":
            os.close(theirs)
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        await asyncio.wait_for(registry.wait_up((0, 0)), 30)
        async with peer(data_address(tmp_path), TOKEN) as client:
            client.send(m.Submit("r", "chat"), body(tokens=10_000))
            await client.get(m.Events)
            assert alive(pid)
            parent.kill()
            await parent.wait()
            await asyncio.to_thread(wait_gone, pid)
    os.close(ours)
    if lifeline != "pipe":
        os.close(theirs)
