"""The run directory: ownership, state, settings, locks, what a dead server leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cluster.identity import Server, current_server
from app.cluster.locks import Lock, is_locked
from app.cluster.rundir import RunDir, StartupError, State, sweep
from tests.servers import ROOT

DEAD = Server(1 << 22, 1)


@pytest.fixture
def run_dir(runtime_dir: Path) -> RunDir:
    made = RunDir.locate("0")
    made.create()
    return made


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the file exclusively until its standard input ends."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_location_is_the_same_for_all_workers_and_differs_by_mount(runtime_dir: Path) -> None:
    assert RunDir.locate("0") == RunDir.locate("0")
    assert RunDir.locate("0").path != RunDir.locate("1").path
    assert RunDir.locate("0").path.parent == runtime_dir


def test_location_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_RUN_DIR", "/run/x")
    assert RunDir.locate("main").path == Path("/run/x/main")
    assert RunDir.locate("main").registry == "ipc:///run/x/main/registry.sock"


def test_path_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_RUN_DIR", "/tmp/" + "x" * 100)
    with pytest.raises(StartupError, match="too long for Unix sockets; set OMNI_RUN_DIR"):
        RunDir.locate("0")


def test_directory_is_private(run_dir: RunDir) -> None:
    assert run_dir.path.stat().st_mode & 0o777 == 0o700
    assert run_dir.path.parent.stat().st_mode & 0o777 == 0o700


def test_link_in_place_of_the_directory_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    run_dir = RunDir.locate("0")
    runtime_dir.mkdir(mode=0o700)
    run_dir.path.symlink_to(tmp_path)
    with pytest.raises(StartupError, match="is not a directory of user"):
        run_dir.create()


def test_state_is_kept(run_dir: RunDir) -> None:
    assert run_dir.read_state() == State()
    state = State("ready", pid=7, restarts=2, detail="x")
    run_dir.write_state(state)
    assert run_dir.read_state() == state


def test_failure_is_raised_in_its_own_words(run_dir: RunDir) -> None:
    run_dir.raise_failure()
    run_dir.write_state(State("failed", error="stage 0 is broken"))
    with pytest.raises(StartupError, match=r"^stage 0 is broken$"):
        run_dir.raise_failure()


def test_failure_of_another_server_is_not_ours(run_dir: RunDir) -> None:
    RunDir(run_dir.path, DEAD).mark_owned()
    run_dir.write_state(State("failed", error="stage 0 is broken"))
    run_dir.raise_failure()
    assert run_dir.read_settings() is None


def test_first_settings_win_and_are_private(run_dir: RunDir) -> None:
    assert run_dir.read_settings() is None
    assert run_dir.write_settings(b"first") == b"first"
    assert run_dir.write_settings(b"second") == b"first"
    assert run_dir.read_settings() == b"first"
    assert run_dir.settings_file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in run_dir.path.iterdir()) == ["settings.json"]


def test_owner_is_known(run_dir: RunDir) -> None:
    assert run_dir.other_owner() is None
    run_dir.mark_owned()
    assert run_dir.other_owner() is None
    assert RunDir(run_dir.path, DEAD).other_owner() == current_server()


def test_taking_over_empties_it_but_keeps_the_locks(run_dir: RunDir) -> None:
    RunDir(run_dir.path, DEAD).mark_owned()
    Lock(run_dir.leases).close()
    run_dir.write_state(State("failed", error="old"))
    run_dir.write_settings(b"old")
    (run_dir.path / "generated").mkdir()
    (run_dir.path / "generated" / "a.png").write_bytes(b"old")
    run_dir.take()
    assert sorted(path.name for path in run_dir.path.iterdir()) == ["leases", "owner"]
    assert run_dir.other_owner() is None


def test_lock_of_another_process_is_seen_and_ends_with_it(run_dir: RunDir) -> None:
    assert not is_locked(run_dir.master_lock)
    with hold(run_dir.master_lock) as holder:
        assert run_dir.master_alive()
        lock = Lock(run_dir.master_lock)
        assert not lock.try_exclusive()
        holder.kill()
        holder.wait(10)
        assert not run_dir.master_alive()
        assert lock.try_exclusive()
        lock.close()


def test_shared_locks_stand_side_by_side_and_bar_the_exclusive_one(run_dir: RunDir) -> None:
    one, two, other = (Lock(run_dir.leases) for _ in range(3))
    assert one.try_shared()
    assert two.try_shared()
    assert not other.try_exclusive()
    one.close()
    two.release()
    assert other.try_exclusive()


def test_lock_knows_that_its_file_was_removed(run_dir: RunDir) -> None:
    lock = Lock(run_dir.leases)
    assert lock.is_at(run_dir.leases)
    run_dir.remove()
    assert not lock.is_at(run_dir.leases)
    run_dir.create()
    Lock(run_dir.leases).close()
    assert not lock.is_at(run_dir.leases)


def test_sweep_removes_what_dead_servers_left_and_nothing_else(runtime_dir: Path) -> None:
    ours, dead, held = RunDir.locate("0"), *(RunDir(runtime_dir / f"{DEAD.pid}-1-{name}", DEAD) for name in ("a", "b"))
    for run_dir in (ours, dead, held):
        run_dir.create()
    (runtime_dir / "notes").write_text("not ours")
    with hold(held.leases) as holder:
        sweep()
        holder.kill()
    assert ours.path.exists()
    assert held.path.exists()
    assert not dead.path.exists()
    assert (runtime_dir / "notes").exists()


def test_undertaker_removes_it_once_the_server_has_ended(run_dir: RunDir) -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    code = (
        "import os, sys; from app.cluster.identity import start_ticks; from app.cluster import undertaker\n"
        "sys.argv[3:] = [str(start_ticks(int(sys.argv[2])))]; undertaker.main()"
    )
    grave = subprocess.Popen([sys.executable, "-c", code, str(run_dir.path), str(server.pid)], cwd=ROOT)
    with pytest.raises(subprocess.TimeoutExpired):
        grave.wait(1)
    assert run_dir.path.exists()
    server.kill()
    server.wait(10)
    assert grave.wait(10) == 0
    assert not run_dir.path.exists()
    assert os.listdir(run_dir.path.parent) == []
