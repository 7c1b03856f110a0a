"""The master as a program: when it leaves, what it leaves behind, what it says when it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from app.cluster import master as master_module
from app.cluster.identity import Server, start_ticks
from app.cluster.locks import Lock
from app.cluster.master import EXIT_FAILED, Leases
from app.cluster.process import spawn_master
from app.cluster.rundir import RunDir
from app.settings.resolve import resolve
from tests.servers import wait_for

SETTINGS = msgspec.json.encode(resolve({"model": "stub"}))


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """The process that stands for the server."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def run_dir(runtime_dir: object, server: subprocess.Popen[bytes]) -> RunDir:
    made = RunDir(RunDir.locate("0").path, Server(server.pid, start_ticks(server.pid) or 0))
    made.create()
    made.mark_owned()
    made.write_settings(SETTINGS)
    return made


@contextmanager
def lease(run_dir: RunDir) -> Iterator[None]:
    lock = Lock(run_dir.leases)
    assert lock.try_shared()
    yield
    lock.close()


def start(run_dir: RunDir) -> subprocess.Popen[bytes]:
    master = spawn_master(run_dir.path, run_dir.server)
    wait_for(lambda: run_dir.read_state().phase not in ("", "spawning", "starting"), 20, "the master")
    return master


def test_it_goes_with_its_server_and_leaves_nothing(run_dir: RunDir, server: subprocess.Popen[bytes]) -> None:
    master = start(run_dir)
    server.kill()
    assert master.wait(5) == 0
    assert not run_dir.path.exists()


def test_it_outlives_its_server_while_workers_are_leased(run_dir: RunDir, server: subprocess.Popen[bytes]) -> None:
    with lease(run_dir):
        master = start(run_dir)
        server.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            master.wait(2)
    assert master.wait(5) == 0


def test_it_leaves_orphaned_workers_in_the_end(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "ORPHAN_S", 0.0)
    with lease(run_dir):
        assert not Leases(run_dir).needless()
        assert Leases(RunDir(run_dir.path, Server(1 << 22, 1))).needless()


def test_it_lingers_while_workers_are_replaced(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Leases(run_dir).needless()
    monkeypatch.setattr(master_module, "LINGER_S", 0.0)
    assert Leases(run_dir).needless()


def test_sigterm_with_workers_keeps_the_directory_for_the_next_one(run_dir: RunDir) -> None:
    with lease(run_dir):
        master = start(run_dir)
        master.send_signal(signal.SIGTERM)
        assert master.wait(10) == 0
        assert run_dir.read_state().phase == "exited"
        assert run_dir.read_settings() == SETTINGS


def test_sigterm_without_workers_removes_everything(run_dir: RunDir) -> None:
    master = start(run_dir)
    master.send_signal(signal.SIGTERM)
    assert master.wait(10) == 0
    assert not run_dir.path.exists()


def test_failure_is_recorded_until_the_server_has_ended(run_dir: RunDir, server: subprocess.Popen[bytes]) -> None:
    run_dir.settings_file.write_bytes(
        msgspec.json.encode(
            resolve({"model": "stub", "stage_overrides": {"0": {"engine_args": {"load_error": "weights are missing"}}}})
        )
    )
    master = start(run_dir)
    assert master.wait(10) == EXIT_FAILED
    state = run_dir.read_state()
    assert state.phase == "failed"
    assert state.error.startswith("stage 0 (stub/0")
    server.kill()
    server.wait(10)
    wait_for(lambda: not run_dir.path.exists(), 5, "the directory to be removed")


def test_settings_that_cannot_be_read_are_a_failure(run_dir: RunDir) -> None:
    run_dir.settings_file.unlink()
    master = start(run_dir)
    assert master.wait(10) == EXIT_FAILED
    assert run_dir.read_state().error == f"there are no settings in {run_dir.path}"
