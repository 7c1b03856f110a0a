"""A worker's way to its master: claim, settings, election, failure, replacement. With real masters on the stub."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from app.cluster.identity import Server, start_ticks
from app.cluster.locks import Lock
from app.cluster.process import spawn_master
from app.cluster.pulse import Pulse
from app.cluster.rundir import RunDir, StartupError, State
from app.cluster.runtime import PROBE_S, Attachment, Interrupted, settle
from app.settings.problems import ConfigError
from app.settings.resolve import resolve
from app.settings.schema import Settings
from app.signals import Shutdown, watch_shutdown
from tests.servers import wait_for

pytestmark = pytest.mark.usefixtures("runtime_dir")

DEAD = Server(1 << 22, 1)


def stub(**engine_args: Any) -> Settings:
    return resolve({"model": "stub", "stage_overrides": {"0": {"engine_args": engine_args}}})


def impatient(**engine_args: Any) -> Settings:
    settings = stub(**engine_args)
    settings.master.heartbeat_timeout = 2
    return settings


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, 20, what)


@pytest.fixture
async def shutdown() -> AsyncIterator[Shutdown]:
    with watch_shutdown() as observed:
        yield observed


@pytest.fixture
def run_dir() -> RunDir:
    return RunDir.locate("0")


@pytest.fixture
def attachment(run_dir: RunDir, shutdown: Shutdown) -> Iterator[Attachment]:
    made = Attachment(run_dir, shutdown)
    yield made
    made.release()


async def test_workers_that_attach_together_share_one_master(run_dir: RunDir, shutdown: Shutdown) -> None:
    workers = [Attachment(run_dir, shutdown) for _ in range(8)]
    await asyncio.gather(*(worker.attach(stub()) for worker in workers))
    state = run_dir.read_state()
    assert state.phase == "ready"
    assert sum(worker._master is not None for worker in workers) == 1
    assert state.pid == next(worker._master.pid for worker in workers if worker._master)
    for worker in workers:
        worker.release()


async def test_master_leaves_after_the_last_worker_but_not_before(attachment: Attachment, run_dir: RunDir) -> None:
    await attachment.attach(stub())
    await asyncio.sleep(1)
    assert run_dir.master_alive()
    attachment.release()
    # It lingers: the server, this process, lives on.
    await until(lambda: not run_dir.path.exists(), "the directory to be removed")


async def test_the_last_worker_clears_up_after_a_master_that_left_first(run_dir: RunDir, shutdown: Shutdown) -> None:
    workers = [Attachment(run_dir, shutdown) for _ in range(2)]
    await asyncio.gather(*(worker.attach(stub()) for worker in workers))
    os.kill(run_dir.read_state().pid, signal.SIGTERM)
    await until(lambda: not run_dir.master_alive(), "its end")
    workers[0].release()
    assert run_dir.path.exists(), "one worker is left"
    workers[1].release()
    assert not run_dir.path.exists()


async def test_settings_of_the_first_worker_hold_for_all(
    attachment: Attachment, run_dir: RunDir, shutdown: Shutdown, caplog: pytest.LogCaptureFixture
) -> None:
    first = stub()
    first.server.api_keys = ["the first key"]
    assert await attachment.attach(first) == first
    assert "keeps the settings" not in caplog.text
    second = stub(token_s=1.0)
    second.server.api_keys = ["the second key"]
    later = Attachment(run_dir, shutdown)
    assert await later.attach(second) == first
    assert "server.api_keys" in caplog.text
    assert "stages" in caplog.text
    assert "the first key" not in caplog.text
    assert "the second key" not in caplog.text
    later.release()


def test_application_is_built_with_the_settings_of_the_server(run_dir: RunDir) -> None:
    assert settle(run_dir, stub) == stub()
    run_dir.create()
    run_dir.write_settings(msgspec.json.encode(stub(token_s=0.5)))
    assert settle(run_dir, stub) == stub(token_s=0.5)


def test_what_became_invalid_later_does_not_stop_a_running_server(
    run_dir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Settings:
        raise ConfigError(["no such model"])

    with pytest.raises(ConfigError):
        settle(run_dir, broken)
    run_dir.create()
    run_dir.write_settings(msgspec.json.encode(stub()))
    assert settle(run_dir, broken) == stub()
    assert "no such model" in caplog.text


async def test_settings_of_another_version_are_refused(attachment: Attachment, run_dir: RunDir) -> None:
    run_dir.create()
    run_dir.write_settings(b'{"from": "the future"}')
    with pytest.raises(StartupError, match="started by another version; restart it"):
        await attachment.attach(stub())


async def test_failure_is_sticky(attachment: Attachment, run_dir: RunDir, shutdown: Shutdown) -> None:
    with pytest.raises(StartupError, match="weights are missing"):
        await attachment.attach(stub(load_error="weights are missing"))
    later = Attachment(run_dir, shutdown)
    with pytest.raises(StartupError, match="weights are missing"):
        await later.attach(stub())
    assert later._master is None
    later.release()


async def test_stop_request_ends_the_wait_at_once(attachment: Attachment, run_dir: RunDir, shutdown: Shutdown) -> None:
    waiting = asyncio.create_task(attachment.attach(stub(load_s=300)))
    await until(lambda: run_dir.read_state().phase == "starting", "the master")
    shutdown.request()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(waiting, 1)


async def test_master_that_dies_while_loading_is_a_failure(attachment: Attachment, run_dir: RunDir) -> None:
    waiting = asyncio.create_task(attachment.attach(stub(load_s=300)))
    await until(lambda: "loading" in run_dir.read_state().detail, "the stage to load")
    os.kill(run_dir.read_state().pid, signal.SIGKILL)
    with pytest.raises(StartupError, match=r"died while it was loading \(exit code -9\); last step: stage 0"):
        await waiting
    assert run_dir.read_state().phase == "failed"


async def test_elected_worker_that_died_before_it_spawned_is_replaced(attachment: Attachment, run_dir: RunDir) -> None:
    run_dir.create()
    run_dir.mark_owned()
    run_dir.write_state(State("spawning"))
    await attachment.attach(stub())
    assert run_dir.read_state().phase == "ready"


async def test_second_master_of_a_directory_goes_away(attachment: Attachment, run_dir: RunDir) -> None:
    await attachment.attach(stub())
    pid = run_dir.read_state().pid
    second = spawn_master(run_dir.path, run_dir.server)
    assert await asyncio.to_thread(second.wait, 20) == 0
    assert run_dir.read_state() == State("ready", pid=pid)


async def test_lost_master_is_replaced_three_times(attachment: Attachment, run_dir: RunDir) -> None:
    await attachment.attach(stub())
    replaced = asyncio.Semaphore(0)
    keeping = asyncio.create_task(attachment.keep(replaced.release))
    for restarts in (1, 2, 3):
        os.kill(run_dir.read_state().pid, signal.SIGKILL)
        await asyncio.wait_for(replaced.acquire(), 20)
        assert run_dir.read_state().restarts == restarts
    os.kill(run_dir.read_state().pid, signal.SIGKILL)
    with pytest.raises(StartupError, match=r"the master process died 4 times \(exit code -9\)"):
        await asyncio.wait_for(keeping, 20)


async def test_directory_of_a_dead_server_is_taken_over(
    attachment: Attachment, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.create()
    RunDir(run_dir.path, DEAD).mark_owned()
    run_dir.write_state(State("failed", error="of the dead server"))
    run_dir.write_settings(b"of the dead server")
    own = stub()
    assert await attachment.attach(own) == own
    assert run_dir.other_owner() is None


async def test_last_processes_of_a_dead_server_are_waited_for(
    attachment: Attachment, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cluster.runtime.CLAIM_S", 0.3)
    run_dir.create()
    RunDir(run_dir.path, DEAD).mark_owned()
    orphan = Lock(run_dir.leases)
    assert orphan.try_shared()
    with pytest.raises(StartupError, match="still in use by another server"):
        await attachment.attach(stub())
    orphan.close()
    await attachment.attach(stub())


async def test_directory_of_a_living_server_is_refused(attachment: Attachment, run_dir: RunDir) -> None:
    parent = Server(os.getppid(), start_ticks(os.getppid()) or 0)
    run_dir.create()
    RunDir(run_dir.path, parent).mark_owned()
    with pytest.raises(StartupError, match=f"belongs to the running server {parent.pid}"):
        await attachment.attach(stub())


async def test_stopped_master_that_loads_is_given_up_and_killed(attachment: Attachment, run_dir: RunDir) -> None:
    waiting = asyncio.create_task(attachment.attach(impatient(load_s=300)))
    await until(lambda: "loading" in run_dir.read_state().detail, "the stage to load")
    await asyncio.sleep(3)
    assert not waiting.done(), "a master that loads gives signs of life"
    pid = run_dir.read_state().pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StartupError, match=f"the master process {pid} gave no sign of life for 2 s"):
        await asyncio.wait_for(waiting, 10)
    await until(lambda: not run_dir.master_alive(), "its end")


async def test_stopped_master_that_serves_is_replaced(attachment: Attachment, run_dir: RunDir) -> None:
    await attachment.attach(impatient())
    replaced = asyncio.Event()
    keeping = asyncio.create_task(attachment.keep(replaced.set))
    await asyncio.sleep(3)
    assert not replaced.is_set(), "a master that serves gives signs of life"
    pid = run_dir.read_state().pid
    os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(replaced.wait(), 15)
    assert run_dir.read_state().pid != pid
    keeping.cancel()


async def test_a_worker_that_sees_a_master_at_each_look_notices_that_it_is_another_one(
    run_dir: RunDir, shutdown: Shutdown
) -> None:
    """One worker replaces it between two looks of the other."""
    quick, slow = (Attachment(run_dir, shutdown) for _ in range(2))
    await quick.attach(stub())
    await slow.attach(stub())
    first, told = run_dir.read_state().pid, asyncio.Event()
    os.kill(first, signal.SIGKILL)
    await until(lambda: not run_dir.master_alive(), "its end")
    await quick._await_ready()
    assert run_dir.read_state().pid != first
    keeping = asyncio.create_task(slow.keep(told.set))
    async with asyncio.timeout(10):
        await told.wait()
    told.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.wait(), 3 * PROBE_S)
    keeping.cancel()
    for worker in (quick, slow):
        worker.release()


def test_a_stopped_master_that_somebody_else_has_replaced_is_not_killed_in_its_successor(run_dir: RunDir) -> None:
    run_dir.create()
    lock = Lock(run_dir.master_lock)
    assert lock.try_exclusive()
    stopped, successor = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        run_dir.write_state(State("ready", pid=stopped.pid))
        pulse = Pulse(run_dir, 1)
        assert [pulse.lost(1), pulse.lost(1), pulse.lost(1)] == [False, False, True]
        run_dir.write_state(State("ready", pid=successor.pid))
        assert pulse.end() == stopped.pid
        assert successor.poll() is None
        run_dir.write_state(State("ready", pid=stopped.pid))
        assert pulse.end() == stopped.pid
        assert stopped.wait(10) == -signal.SIGKILL
    finally:
        for process in (stopped, successor):
            process.kill()
            process.wait(10)
        lock.close()
