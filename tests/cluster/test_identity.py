"""Which server a process belongs to."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

from app.cluster.identity import Server, current_server, start_ticks


def _report(pipe: object) -> None:
    pipe.send(current_server())  # type: ignore[attr-defined]


def _server_of_child(name: str) -> Server:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_report, args=(theirs,), name=name)
    child.start()
    assert ours.poll(30)
    server: Server = ours.recv()
    child.join(10)
    return server


def test_single_process_is_its_own_server() -> None:
    server = current_server()
    assert server.pid == os.getpid()
    assert server.alive


def test_granian_worker_belongs_to_its_main_process() -> None:
    assert _server_of_child("granian-worker") == current_server()


def test_users_own_child_is_a_server_of_its_own() -> None:
    assert _server_of_child("crunch").pid != os.getpid()


def test_ended_process_is_not_alive_not_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = Server(child.pid, start_ticks(child.pid) or 0)
    assert server.alive
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not server.alive
    child.wait()
    assert not server.alive


def test_reused_pid_is_another_server() -> None:
    server = current_server()
    assert not Server(server.pid, server.ticks + 1).alive


def test_digest_depends_on_server_and_mount() -> None:
    server = current_server()
    digests = {server.digest("0"), server.digest("1"), Server(server.pid, server.ticks + 1).digest("0")}
    assert len(digests) == 3
    assert server.digest("0") in digests
