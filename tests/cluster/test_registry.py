"""The master's table over its real socket: bare peers play replicas and API workers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cluster import messages as m
from app.cluster.registry import Registry
from app.cluster.roster import Key
from app.cluster.rundir import StartupError
from app.settings.schema import Settings
from tests.clusters import TOKEN, Peer, eventually, free_port, peer, registration, running_registry, settings, with_tcp

CAN_CHAT = m.Capabilities(["chat"], 100, ["text"], ["text"])


def patient(heartbeat_s: float = 30) -> Settings:
    """Nothing is pushed by the clock: what arrives was pushed by a change."""
    config = settings()
    config.master.token = TOKEN
    config.master.heartbeat_s, config.master.heartbeat_timeout = heartbeat_s, 3 * heartbeat_s
    return config


@asynccontextmanager
async def subscriber(path: Path, config: Settings, client_id: str = "worker", pid: int = 0) -> AsyncIterator[Peer]:
    async with peer(f"ipc://{path}/registry.sock", config.master.token) as worker:
        worker.send(m.Subscribe(m.PROTOCOL, client_id, pid or os.getpid()))
        await worker.get(m.Membership)
        yield worker


@asynccontextmanager
async def replica(path: Path, config: Settings, **changes: Any) -> AsyncIterator[Peer]:
    async with peer(f"ipc://{path}/registry.sock", config.master.token) as connected:
        connected.send(registration(config, **changes))
        yield connected


def states(membership: m.Membership) -> list[str]:
    return [x.state for x in membership.replicas]


async def test_a_replica_is_welcomed_and_every_change_is_pushed_at_once(tmp_path: Path) -> None:
    config = patient()
    async with (
        running_registry(tmp_path, config),
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config) as one,
    ):
        assert await one.get(m.Welcome) == m.Welcome(0, 30)
        assert states(await worker.get(m.Membership)) == ["starting"]
        one.send(m.Ready(CAN_CHAT))
        (info,) = (await worker.get(m.Membership)).replicas
        assert (info.state, info.capabilities) == ("up", CAN_CHAT)
        one.send(m.Heartbeat("draining", 1, m.Load(3, 4, 5)))
        (info,) = (await worker.get(m.Membership)).replicas
        assert (info.state, info.load) == ("draining", m.Load(3, 4, 5))
        one.send(m.Bye("killed"))
        (info,) = (await worker.get(m.Membership)).replicas
        assert (info.state, info.note, info.load) == ("down", "killed", m.Load())


async def test_the_wrong_token_never_reaches_the_registry(tmp_path: Path) -> None:
    config = patient()
    async with running_registry(tmp_path, config):
        async with peer(f"ipc://{tmp_path}/registry.sock", "a guess") as intruder:
            intruder.send(registration(config))
            intruder.send(m.Subscribe(m.PROTOCOL, "spy", 1))
            await asyncio.sleep(0.3)
            assert intruder.heard == []
        async with subscriber(tmp_path, config) as worker, replica(tmp_path, config, replica_id=7) as one:
            await one.get(m.Welcome)
            assert [x.replica_id for x in (await worker.get(m.Membership)).replicas] == [7]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": m.PROTOCOL + 1}, ["protocol", "install the same version"]),
        ({"version": "0.0.1"}, ["0.0.1", "install the same version"]),
        ({"stage_id": 9}, ["no stage 9", "[0]"]),
        ({"model": "theirs"}, ["stage 0 (stub)", "'theirs'", "'stub'", "same"]),
        ({"config_digest": "other"}, ["stage 0 (stub)", "configuration", "same flags and files"]),
    ],
)
async def test_a_mismatch_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    config = patient()
    async with (
        running_registry(tmp_path, config),
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config, **changes) as one,
    ):
        reason = (await one.get(m.Refused)).reason
        for word in words:
            assert word in reason
        assert worker.heard == []


@pytest.mark.parametrize("frames", [(b"\xc1 not msgpack",), (b"",), (m.encode(m.Ping()),)])
async def test_what_is_not_of_this_channel_is_refused(tmp_path: Path, frames: tuple[bytes, ...]) -> None:
    config = patient()
    async with running_registry(tmp_path, config), peer(f"ipc://{tmp_path}/registry.sock", TOKEN) as stranger:
        stranger.send_raw(*frames)
        assert "not a message" in (await stranger.get(m.Refused)).reason
        stranger.send(m.Welcome(1, 1))
        assert "not for the master" in (await stranger.get(m.Refused)).reason
        stranger.send(m.Subscribe(m.PROTOCOL + 1, "worker", 1))
        assert "protocol" in (await stranger.get(m.Refused)).reason


async def test_silence_makes_suspect_then_lost(tmp_path: Path) -> None:
    config = patient(heartbeat_s=0.05)
    config.master.heartbeat_timeout = 0.6
    given_up: list[Key] = []
    async with running_registry(tmp_path, config) as registry, subscriber(tmp_path, config) as worker:
        registry.on_given_up = given_up.append
        async with replica(tmp_path, config) as one:
            one.send(m.Ready(CAN_CHAT))
            for state in ("up", "suspect"):
                await worker.get(m.Membership, where=lambda x, state=state: states(x) == [state])
            one.send(m.Heartbeat("up", 1, m.Load()))
            await worker.get(m.Membership, where=lambda x: states(x) == ["up"])
            await worker.get(m.Membership, where=lambda x: states(x) == ["down"])
            assert given_up == [(0, 0)]
            assert "no heartbeat" in registry.failure((0, 0))
            one.send(m.Heartbeat("up", 2, m.Load()))
            await one.get(m.Reregister)


async def test_replicas_are_not_held_responsible_for_the_time_it_was_stopped(tmp_path: Path) -> None:
    config = patient(heartbeat_s=0.05)
    config.master.heartbeat_timeout = 0.6
    async with running_registry(tmp_path, config) as registry, replica(tmp_path, config) as one:
        one.send(m.Ready(CAN_CHAT))
        await registry.wait_up((0, 0))
        time.sleep(1)  # noqa: ASYNC251 - nothing runs, as after SIGSTOP
        await asyncio.sleep(0.2)
        assert registry.failure((0, 0)) == ""


async def test_an_engine_that_has_work_and_makes_no_step_is_given_up(tmp_path: Path) -> None:
    config = patient(heartbeat_s=0.05)
    config.master.stall_timeout = 0.3
    async with running_registry(tmp_path, config) as registry, replica(tmp_path, config) as one:
        given_up = asyncio.Event()
        registry.on_given_up = lambda _: given_up.set()
        one.send(m.Ready(CAN_CHAT))
        for load in [m.Load()] * 10 + [m.Load(1, 0, step) for step in range(10)]:
            one.send(m.Heartbeat("up", 1, load))
            await asyncio.sleep(0.05)
        assert not given_up.is_set(), "it was idle, then it moved"
        async with asyncio.timeout(5):
            while not given_up.is_set():
                one.send(m.Heartbeat("up", 1, m.Load(1, 0, 9)))
                await asyncio.sleep(0.05)
        assert "made no step" in registry.failure((0, 0))


async def test_up_needs_to_know_what_the_replica_can_do(tmp_path: Path) -> None:
    """A replica that registers anew sends a heartbeat, in which it is up, before its Ready."""
    config = patient()
    async with (
        running_registry(tmp_path, config),
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config) as one,
    ):
        one.send(m.Heartbeat("up", 1, m.Load(1, 1, 1)))
        one.send(m.Ready(CAN_CHAT))
        membership = await worker.get(m.Membership, where=lambda x: states(x) == ["up"])
        assert membership.replicas[0].capabilities == CAN_CHAT


async def test_who_waits_for_a_replica_is_told_after_it_was_lost_and_came_back(tmp_path: Path) -> None:
    """A load that blocks the replica's loop for longer than --heartbeat-timeout must not fail the start."""
    config = patient()
    async with running_registry(tmp_path, config) as registry:
        up = asyncio.create_task(registry.wait_up((0, 0)))
        async with replica(tmp_path, config) as one:
            await one.get(m.Welcome)
            registry.lost((0, 0), "no heartbeat for 30 s")
            assert not registry._members
            one.send(registration(config))
            one.send(m.Ready(CAN_CHAT))
            await asyncio.wait_for(up, 5)
            registry.lost((0, 0), "gone")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(registry.wait_up((0, 0)), 0.1)


async def test_the_death_of_an_api_worker_is_told_to_the_replicas(tmp_path: Path) -> None:
    config = patient()
    child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        async with (
            running_registry(tmp_path, config),
            replica(tmp_path, config) as one,
            subscriber(tmp_path, config, "doomed", child.pid) as worker,
        ):
            await one.get(m.Welcome)
            child.kill()
            assert await one.get(m.ClientGone) == m.ClientGone("doomed")
            worker.heard.clear()
            one.send(m.Ready(CAN_CHAT))
            await asyncio.sleep(0.1)
            assert worker.heard == [], "nobody reads what is pushed to the dead"
    finally:
        await child.wait()


async def test_ids_of_headless_replicas(tmp_path: Path) -> None:
    """Behind those of the local ones, the lowest free one; a process keeps its own, and only its own."""
    config = patient()
    config.stages[0].num_replicas = 2
    twin: dict[str, Any] = {"replica_id": -1, "host": "pod", "pid": 7}
    async with (
        running_registry(tmp_path, config),
        replica(tmp_path, config, **twin, address="tcp://10.0.0.1:1") as first,
        replica(tmp_path, config, **twin, address="tcp://10.0.0.2:1") as second,
    ):
        ids = [(await x.get(m.Welcome)).replica_id for x in (first, second)]
        assert sorted(ids) == [2, 3], "two containers may share host name and pid"
        second.send(registration(config, **twin, address="tcp://10.0.0.2:1"))
        assert (await second.get(m.Welcome)).replica_id == ids[1]
        first.send(m.Bye())
        async with replica(tmp_path, config, **twin, address="tcp://10.0.0.3:1") as third:
            first.send(m.Heartbeat("up", 1, m.Load()))
            await first.get(m.Reregister)
            assert (await third.get(m.Welcome)).replica_id == ids[0]


async def test_the_reason_of_a_bye_is_kept_for_the_supervisor(tmp_path: Path) -> None:
    config = patient()
    async with running_registry(tmp_path, config) as registry, replica(tmp_path, config) as one:
        one.send(m.Bye("RuntimeError: no such checkpoint"))
        await eventually(lambda: registry.failure((0, 0)) != "")
        assert registry.failure((0, 0)) == "RuntimeError: no such checkpoint"
        one.send(m.Bye())  # the last word on the way out
        one.send(m.Heartbeat("up", 1, m.Load()))
        await one.get(m.Reregister)
        assert one.heard == []
        assert registry.failure((0, 0)) == "RuntimeError: no such checkpoint"
        registry.expect((0, 0))
        assert registry.failure((0, 0)) == ""


async def test_who_shall_leave_is_told_and_so_are_the_api_workers(tmp_path: Path) -> None:
    config = patient()
    async with (
        running_registry(tmp_path, config) as registry,
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config, replica_id=0) as one,
        replica(tmp_path, config, replica_id=1) as two,
    ):
        for each in (one, two):
            each.send(m.Ready(CAN_CHAT))
        await worker.get(m.Membership, where=lambda x: states(x) == ["up", "up"])
        registry.drain((0, 1), 1.5)
        await worker.get(m.Membership, where=lambda x: states(x) == ["up", "draining"])
        assert await two.get(m.Drain) == m.Drain(1.5)
        assert not [x for x in one.heard if isinstance(x, m.Drain)]


async def test_a_parent_elsewhere_tells_of_the_death_of_its_replica(tmp_path: Path) -> None:
    config = patient()
    async with (
        running_registry(tmp_path, config),
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config, replica_id=-1) as one,
        peer(f"ipc://{tmp_path}/registry.sock", TOKEN) as parent,
    ):
        one.send(m.Ready(CAN_CHAT))
        await worker.get(m.Membership, where=lambda x: states(x) == ["up"])
        parent.send(m.Gone("tcp://127.0.0.1:8", "of another one"))
        parent.send(m.Gone("tcp://127.0.0.1:9", "killed by SIGKILL"))
        (info,) = (await worker.get(m.Membership, where=lambda x: states(x) == ["down"])).replicas
        assert info.note == "killed by SIGKILL"


async def test_an_id_that_a_living_replica_has_is_refused_and_that_of_a_dead_one_is_not(tmp_path: Path) -> None:
    config = patient()
    async with (
        running_registry(tmp_path, config) as registry,
        replica(tmp_path, config, replica_id=0, address="tcp://10.0.0.1:1", host="first") as one,
    ):
        await one.get(m.Welcome)
        async with replica(tmp_path, config, replica_id=0, address="tcp://10.0.0.2:1") as two:
            assert "there is a replica 0 of stage 0: process" in (await two.get(m.Refused)).reason
            registry.lost((0, 0), "killed")
            two.send(registration(config, replica_id=0, address="tcp://10.0.0.2:1"))
            assert (await two.get(m.Welcome)).replica_id == 0
    assert len(registry._members) == 1


async def test_an_operator_numbers_a_headless_replica(tmp_path: Path) -> None:
    config = patient(heartbeat_s=0.05)
    config.master.heartbeat_timeout = 30
    outside: dict[str, Any] = {"replica_id": -1, "wanted": 7}
    async with (
        running_registry(tmp_path, config) as registry,
        subscriber(tmp_path, config) as worker,
        replica(tmp_path, config, **outside, address="tcp://10.0.0.1:1") as one,
    ):
        assert (await one.get(m.Welcome)).replica_id == 7
        one.send(registration(config, **outside, address="tcp://10.0.0.1:1"))
        assert (await one.get(m.Welcome)).replica_id == 7, "it registers again"
        async with replica(tmp_path, config, replica_id=-1, wanted=0, address="tcp://10.0.0.9:1") as own:
            assert "one of the server's own: choose another --replica-id" in (await own.get(m.Refused)).reason
        async with replica(tmp_path, config, **outside, address="tcp://10.0.0.2:1") as two:
            assert "there is a replica 7 of stage 0: process" in (await two.get(m.Refused)).reason
            one.send(m.Ready(CAN_CHAT))
            await worker.get(m.Membership, where=lambda x: states(x) == ["suspect"])
            two.send(registration(config, **outside, address="tcp://10.0.0.2:1"))
            assert (await two.get(m.Welcome)).replica_id == 7, "the host of the first one has been silent"
            one.send(m.Heartbeat("up", 1, m.Load()))
            await one.get(m.Reregister)
    assert [member.info.address for member in registry._members.values()] == ["tcp://10.0.0.2:1"]


async def test_what_is_wanted_is_told_with_the_membership(tmp_path: Path) -> None:
    config = patient()
    asked: list[m.Scale] = []
    async with running_registry(tmp_path, config) as registry, subscriber(tmp_path, config) as worker:
        registry.on_scale = asked.append
        async with peer(f"ipc://{tmp_path}/registry.sock", TOKEN) as stranger:
            stranger.send(m.Scale(0, 9))
            await stranger.get(m.Refused)
        worker.send(m.Scale(0, 3, "1,2"))
        await eventually(lambda: asked == [m.Scale(0, 3, "1,2")])
        registry.want(0, 3)
        await worker.get(m.Membership, where=lambda x: x.wanted == [(0, 3)])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_headless_replicas_come_over_tcp(tmp_path: Path, host: str) -> None:
    config = with_tcp(settings())
    config.master.address = host
    async with running_registry(tmp_path, config), peer(f"tcp://{host}:{config.master.port}", TOKEN) as one:
        one.send(registration(config, replica_id=-1))
        await one.get(m.Welcome)


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("0.0.0.0", "", "--omni-token"),
        ("192.0.2.1", "secret", "cannot listen for headless replicas on 192.0.2.1"),
        ("no-such-host.invalid", "secret", "cannot listen for headless replicas on no-such-host.invalid"),
    ],
)
async def test_an_address_that_cannot_be_used_is_a_startup_error(
    tmp_path: Path, address: str, token: str, words: str
) -> None:
    config = with_tcp(settings(), token)
    config.master.address = address
    registry = Registry(config, f"ipc://{tmp_path}/registry.sock")
    with pytest.raises(StartupError, match=words):
        await registry.start()
    await registry.stop()


async def test_a_port_in_use_is_a_startup_error_and_is_free_after_stop(tmp_path: Path) -> None:
    config = with_tcp(settings())
    async with running_registry(tmp_path, config):
        second = Registry(config, f"ipc://{tmp_path}/second.sock")
        with pytest.raises(StartupError, match=f"port {config.master.port}: Address already in use"):
            await second.start()
        await second.stop()
    async with running_registry(tmp_path, config):
        assert free_port() != config.master.port
