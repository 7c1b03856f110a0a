"""Start, stop and kill whole servers: one master in every case, and nothing left afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.servers import GRANIAN, ROOT, start_server, wait_for

STUB = {"OMNI_MODEL": "stub"}
SLOW = {"OMNI_MODEL": "stub", "OMNI_STAGE_OVERRIDES": '{"0": {"engine_args": {"load_s": 300}}}'}
BROKEN = {"OMNI_MODEL": "stub", "OMNI_STAGE_OVERRIDES": '{"0": {"engine_args": {"load_error": "weights are missing"}}}'}
DYING = {"OMNI_MODEL": "stub", "OMNI_STAGE_OVERRIDES": '{"0": {"engine_args": {"load_exit": 7}}}'}
NOISE = ("Traceback", "resource_tracker", "never awaited", "was destroyed but", "unraisable")


def granian(workers: int, *more: str) -> list[str]:
    return [*GRANIAN, "--workers", str(workers), *more]


@pytest.mark.parametrize("workers", [4, 8])
def test_one_master_for_all_workers_and_nothing_left(workers: int) -> None:
    with start_server(granian(workers), STUB) as server:
        server.wait_ready()
        wait_for(lambda: server.output().count("Started worker") == workers, 20, "all workers")
        assert len(server.workers) == workers
        assert len(server.masters) == 1
        assert len(server.replicas) == 1
        assert server.stop() == 0
        server.assert_nothing_left()
        assert not [word for word in NOISE if word in server.output()]


def test_killed_worker_is_respawned_on_the_same_master() -> None:
    with start_server(granian(4, "--respawn-failed-workers"), STUB) as server:
        server.wait_ready()
        masters, victim = server.masters, server.workers[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: victim not in server.workers and len(server.workers) == 4, 20, "the new worker")
        wait_for(lambda: server.output().count("Started worker") == 5, 20, "the new worker to serve")
        assert server.masters == masters
        assert server.stop() == 0
        server.assert_nothing_left()


def test_killing_the_elected_worker_while_loading_keeps_the_master() -> None:
    env = {**STUB, "OMNI_STAGE_OVERRIDES": '{"0": {"engine_args": {"load_s": 4}}}'}
    with start_server(granian(2, "--respawn-failed-workers"), env) as server:
        master = wait_for(lambda: server.masters, 10, "the master")
        elected = wait_for(lambda: _parent_of(master[0]), 5, "the elected worker")
        assert elected in server.workers
        os.kill(elected, signal.SIGKILL)
        server.wait_ready()
        assert server.masters == master
        assert server.stop() == 0
        server.assert_nothing_left()


def test_rolling_restart_keeps_the_master() -> None:
    with start_server(granian(2, "--respawn-interval", "0.5"), STUB) as server:
        server.wait_ready()
        masters, workers = server.masters, set(server.workers)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not workers & set(server.workers) and len(server.workers) == 2, 30, "two new workers")
        server.wait_ready()
        assert server.masters == masters
        assert server.stop() == 0
        server.assert_nothing_left()


def test_killed_main_process_leaves_no_orphan() -> None:
    with start_server(granian(4), STUB) as server:
        server.wait_ready()
        server.kill()
        assert server.wait() == -signal.SIGKILL
        server.assert_nothing_left()


def test_killed_main_process_while_loading_leaves_no_orphan() -> None:
    with start_server(granian(2), SLOW) as server:
        wait_for(lambda: server.replicas, 20, "the replica to load")
        server.kill()
        server.wait()
        server.assert_nothing_left()


def test_everything_killed_but_the_replicas() -> None:
    with start_server(granian(2), STUB) as server:
        server.wait_ready()
        for pid in (server.pid, *server.workers, *server.masters):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not server.tree(), 10, "the replicas to follow")


def test_lost_master_is_replaced() -> None:
    with start_server(granian(2), STUB) as server:
        server.wait_ready()
        (master,) = server.masters
        workers = server.workers
        os.kill(master, signal.SIGKILL)
        wait_for(lambda: server.masters and server.masters != [master], 10, "another master")
        server.wait_ready()
        assert server.workers == workers
        assert len(server.masters) == 1
        assert server.stop() == 0
        server.assert_nothing_left()


def test_server_that_keeps_losing_masters_ends() -> None:
    with start_server(granian(2), STUB) as server:
        for _ in range(4):
            server.wait_ready()
            (master,) = server.masters
            os.kill(master, signal.SIGKILL)
            wait_for(lambda master=master: master not in server.tree(), 5, "its death")
            wait_for(lambda: server.masters or server.process.poll() is not None, 10, "another master or the end")
        assert server.wait() == 1
        assert "the master process died 4 times" in server.output()
        server.assert_nothing_left()


def test_two_servers_at_once_have_a_master_each() -> None:
    with start_server(granian(2), STUB) as one, start_server(granian(2), STUB) as two:
        one.wait_ready()
        two.wait_ready()
        assert len(one.masters) == len(two.masters) == 1
        assert one.stop() == 0
        one.assert_nothing_left()
        assert two.answers()
        assert two.stop() == 0
        two.assert_nothing_left()


@pytest.mark.parametrize("more", [(), ("--respawn-failed-workers",)])
@pytest.mark.parametrize(
    ("env", "cause"), [(BROKEN, "weights are missing"), (DYING, "exit code 7")], ids=["raises", "dies"]
)
def test_failed_load_ends_the_server(more: tuple[str, ...], env: dict[str, str], cause: str) -> None:
    with start_server(granian(4, *more), env) as server:
        assert server.wait(30) == 1
        message = server.output().partition("[ERROR] startup failed: ")[2]
        assert message.startswith("stage 0 (stub/0")
        assert cause in message.partition("[ERROR]")[0]
        assert "continuing without Lifespan" not in server.output()
        server.assert_nothing_left()


def test_master_killed_while_loading_ends_the_server() -> None:
    with start_server(granian(2), SLOW) as server:
        wait_for(lambda: server.replicas, 20, "the replica to load")
        os.kill(server.masters[0], signal.SIGKILL)
        assert server.wait(20) == 1
        assert "the master process died while it was loading" in server.output()
        server.assert_nothing_left()


def test_missing_model_ends_the_server_with_one_clear_line() -> None:
    with start_server(granian(2), {}) as server:
        assert server.wait(20) == 1
        assert "[ERROR] startup failed: no model: set OMNI_MODEL" in server.output()
        server.assert_nothing_left()
        assert "Traceback" not in server.output()


@pytest.mark.parametrize("stop", ["terminate", "press_ctrl_c"])
def test_stop_during_a_long_load(stop: str) -> None:
    with start_server(granian(4), SLOW) as server:
        wait_for(lambda: server.replicas, 20, "the replica to load")
        began = time.monotonic()
        getattr(server, stop)()
        assert server.wait(10) == 0
        assert time.monotonic() - began < 8
        server.assert_nothing_left()
        assert not [word for word in NOISE if word in server.output()]


@pytest.mark.parametrize("stop", ["terminate", "press_ctrl_c"])
@pytest.mark.parametrize("seed", range(3))
def test_stop_at_a_random_moment_of_the_start(stop: str, seed: int) -> None:
    delay = random.Random(f"{stop} {seed}").uniform(0.05, 2.0)
    with start_server(granian(4), STUB) as server:
        time.sleep(delay)
        getattr(server, stop)()
        code = server.wait(15)
        assert code == 0 or "Starting granian" not in server.output(), f"after {delay:.2f} s: {server.output()}"
        server.assert_nothing_left()


def test_background_boot_opens_the_port_at_once() -> None:
    env = {"OMNI_BOOT": "background", "OMNI_MODEL": "stub"}
    env["OMNI_STAGE_OVERRIDES"] = '{"0": {"engine_args": {"load_s": 5}}}'
    with start_server(granian(2), env) as server:
        wait_for(lambda: server.answers("/livez"), 10, "the port")
        assert server.get("/readyz").status_code == 503
        server.wait_ready()
        assert len(server.masters) == 1
        assert server.stop() == 0
        server.assert_nothing_left()


@pytest.mark.parametrize("more", [(), ("--respawn-failed-workers",)])
def test_failed_background_boot_ends_the_server(more: tuple[str, ...]) -> None:
    with start_server(granian(2, *more), {**BROKEN, "OMNI_BOOT": "background"}) as server:
        assert server.wait(30) == 1
        assert "weights are missing" in server.output()
        server.assert_nothing_left()


UVICORN = ("uvicorn", "app:create_app", "--host", "127.0.0.1")


@pytest.mark.parametrize("more", [(), ("--factory",), ("--workers", "2")], ids=["plain", "factory", "workers"])
def test_uvicorn(more: tuple[str, ...]) -> None:
    with start_server([*UVICORN, *more], STUB) as server:
        server.wait_ready()
        assert len(server.masters) == 1
        assert server.stop() in (0, -signal.SIGTERM)
        server.assert_nothing_left()


def test_granian_factory() -> None:
    with start_server(granian(2, "--factory"), STUB) as server:
        server.wait_ready()
        assert len(server.masters) == 1
        assert server.stop() == 0
        server.assert_nothing_left()


def test_uvicorn_reports_a_failed_load() -> None:
    with start_server(UVICORN, BROKEN) as server:
        assert server.wait() == 3
        assert "weights are missing" in server.output()
        server.assert_nothing_left()


def test_run_directory_of_another_running_server_is_refused(tmp_path: Path) -> None:
    env = {**STUB, "OMNI_RUN_DIR": str(tmp_path / "run")}
    with start_server(granian(2), env) as one:
        one.wait_ready()
        with start_server(granian(2), env) as two:
            assert two.wait() == 1
            assert f"belongs to the running server {one.pid}" in two.output()
        assert one.answers()
        assert one.stop() == 0


def test_users_own_app_module_does_not_reach_master_and_replicas(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('the wrong app')\n")
    (tmp_path / "host.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules.pop('app', None)\n"
        "from app import create_app\n"
        "application = create_app(model='stub')\n"
    )
    line = ["granian", "--interface", "asgi", "host:application", "--workers", "2"]
    with start_server(line, {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path) as server:
        server.wait_ready()
        assert len(server.masters) == 1
        assert server.stop() == 0
        server.assert_nothing_left()


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
