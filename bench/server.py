"""One server under test: started, waited for, looked at and stopped; nothing of it is left."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import tree
from bench.variants import Variant, peer_path

START_LIMIT_S = 240.0
STOP_LIMIT_S = 30.0
_POLL_S = 0.05


class BenchError(RuntimeError):
    """A server did not do what the benchmark needs; str() says what, with the end of its log."""


class Server:
    """A running server that has answered its first request after `ready_s` seconds."""

    def __init__(self, variant: Variant, model: Path, home: Path) -> None:
        self.variant = variant
        self.port = free_port()
        self._log = home / "log"
        command = [part.format(model=model, port=self.port) for part in variant.command]
        with self._log.open("wb") as log:
            begin = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=_environment(variant, home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_until_ready(begin + START_LIMIT_S)
        self.ready_s = time.perf_counter() - begin

    def _wait_until_ready(self, deadline: float) -> None:
        while not self._answers():
            if self._process.poll() is not None:
                raise BenchError(f"{self.variant.name} ended with {self._process.returncode}\n{self._tail()}")
            if time.perf_counter() > deadline:
                raise BenchError(f"{self.variant.name} is not ready after {START_LIMIT_S:g} s\n{self._tail()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        """Whether the variant's small request is answered with 200."""
        body = json.dumps(self.variant.body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", self.variant.path, body, {"Content-Type": "application/json"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def processes(self) -> dict[str, tree.Process]:
        """Its processes by what they do ("api 0", "engine 0", "master", ...)."""
        found: dict[str, tree.Process] = {}
        counts: dict[str, int] = {}
        for process in tree.descendants(os.getpid()):
            role = _role(process, self._process.pid, self.variant)
            found[f"{role} {counts.setdefault(role, 0)}"] = process
            counts[role] += 1
        return found

    def stop(self) -> None:
        """SIGTERM, and what is not gone in time is killed."""
        self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT_S
        while tree.descendants(os.getpid()) and time.monotonic() < deadline:
            self._process.poll()
            _reap()
            time.sleep(_POLL_S)
        tree.kill_descendants()
        _reap()

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@contextmanager
def running(variant: Variant, model: Path) -> Iterator[Server]:
    """The server of a variant, for the time of the block.

    Raises:
        BenchError: it does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="bench") as home:
        server: Server | None = None
        try:
            server = Server(variant, model, Path(home))
            yield server
        finally:
            if server is not None:
                server.stop()
            tree.kill_descendants()
            _reap()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(variant: Variant, home: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMNI_", "GRANIAN_", "VLLM_"))}
    clean.pop("PYTHONPATH", None)
    runtime = home / "run"
    runtime.mkdir()
    clean |= {"XDG_RUNTIME_DIR": str(runtime), **variant.env}
    if variant.side == "peer":
        clean["PYTHONPATH"] = peer_path(home / "path")
    return clean


def _role(process: tree.Process, root: int, variant: Variant) -> str:
    if not process.command:
        return "ended"
    text = f"{process.title} {process.command}"
    for mark, role in (
        ("app.cluster.master", "master"),
        ("EngineCore", "engine"),
        ("app.engines.worker", "replica"),
        ("app.console.report", "reporter"),
        ("resource_tracker", "tracker"),
        ("VLLM::Worker", "executor"),
        ("APIServer", "api"),
    ):
        if mark in text:
            return role
    if process.pid == root:
        return "main" if variant.side == "ours" or variant.api_processes > 1 else "api"
    return "api" if variant.side == "ours" and process.parent == root else "other"


def _reap() -> None:
    """Collect orphans that came to us (see tree.adopt_orphans)."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
