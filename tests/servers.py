"""Start real servers, look at their processes, and prove that nothing is left of them.

A process of a server is known by its session (main process and workers) or by a marker in its environment (the
detached master and its replicas). Process titles that setproctitle writes destroy the environment as /proc shows it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import httpx

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MARKER = "TESTS_SERVER"
GRANIAN = ("granian", "--interface", "asgi", "app:create_app")

T = TypeVar("T")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(
    condition: Callable[[], T], timeout: float, what: str, period: float = 0.05, *, server: Server | None = None
) -> T:
    """The first true value of `condition`; AssertionError naming `what` after `timeout` seconds, with the output of
    `server` and what is left of it."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            state = "" if server is None else f"\n{server.output()}\nleft: {server.leftovers()}"
            raise AssertionError(f"timed out after {timeout} s waiting for {what}{state}")
        time.sleep(period)
    return value


class Server:
    """One running server with a runtime directory, a session and a log file of its own."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], *, cwd: Path, port: int, host: str = "127.0.0.1"
    ) -> None:
        self.host = host
        self.port = port
        self.url = f"http://{host}:{port}"
        self.home = Path(tempfile.mkdtemp(prefix="ot", dir="/tmp"))
        self.log = self.home / "log"
        self.runtime = self.home / "run"
        self.runtime.mkdir()
        self._marker = f"{MARKER}={uuid.uuid4().hex}"
        self._shm = set(os.listdir("/dev/shm"))
        self._pids: set[int] = set()
        name, value = self._marker.split("=")
        clean = {key: text for key, text in os.environ.items() if not key.startswith(("OMNI_", "GRANIAN_"))}
        homes = {"XDG_RUNTIME_DIR": str(self.runtime), "XDG_STATE_HOME": str(self.home / "state")}
        clean |= {"PYTHONPATH": str(ROOT), **homes, name: value, **env}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(BIN / args[0]), *args[1:]],
                cwd=cwd,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    # ---------------------------------------------------------------------------------------------- looking at it

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def tree(self) -> dict[int, str]:
        """All its living processes: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (command := self._command(entry)):
                found[int(entry.name)] = command
        self._pids |= found.keys()
        return found

    def _command(self, entry: Path) -> str:
        """Its command line if the process is one of ours and alive, else nothing."""
        try:
            status = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if status[0] in (b"Z", b"X"):
                return ""
            ours = int(status[3]) == self.pid or self._marker.encode() in (entry / "environ").read_bytes().split(b"\0")
            return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") if ours else ""
        except OSError:
            return ""

    def running(self, module: str) -> list[int]:
        """Pids of its processes that run a module of ours ("app.cluster.master")."""
        return [pid for pid, command in self.tree().items() if f" {module} " in command]

    @property
    def masters(self) -> list[int]:
        return self.running("app.cluster.master")

    @property
    def replicas(self) -> list[int]:
        return self.running("app.engines.worker")

    @property
    def workers(self) -> list[int]:
        """Children of the main process: the API workers of Granian or uvicorn."""
        helpers = {"app.console.report"}  # of `omni-app serve`
        children = {pid: command for pid, command in self.tree().items() if _parent(pid) == self.pid}
        return [pid for pid, command in children.items() if not helpers & set(command.split())]

    @property
    def replica_sockets(self) -> list[Path]:
        """Where its local replicas listen, from the moment they do."""
        return list(self.runtime.glob("omni-*/*/r*-*.sock"))

    def leftovers(self) -> list[str]:
        """What still exists of it: processes, run directories, shared memory."""
        left = [f"process {pid}: {command[-120:]}" for pid, command in self.tree().items()]
        base = self.runtime / f"omni-{os.getuid()}"
        left += [f"run directory {path}" for path in (base.iterdir() if base.exists() else ())]
        new = set(os.listdir("/dev/shm")) - self._shm
        left += [f"shared memory {name}" for name in new if any(str(pid) in name for pid in self._pids)]
        return left

    # ------------------------------------------------------------------------------------------------- acting on it

    def get(self, path: str, timeout: float = 5.0) -> httpx.Response:
        return httpx.get(self.url + path, timeout=timeout)

    def answers(self, path: str = "/readyz", status: int = 200) -> bool:
        """Whether GET `path` gives `status` now."""
        try:
            return self.get(path).status_code == status
        except httpx.TransportError:
            return False

    def wait_ready(self, timeout: float = 30.0) -> Server:
        """Wait until it serves; fails at once with its output if it ends instead."""
        wait_for(lambda: self.process.poll() is not None or self.answers(), timeout, "the server", server=self)
        assert self.process.poll() is None, f"it ended with {self.process.returncode}\n{self.output()}"
        return self

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def press_ctrl_c(self) -> None:
        """SIGINT to its foreground group, as a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float = 20.0) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s: {self.tree()}\n{self.output()}") from None

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM and wait; its exit code."""
        self.terminate()
        return self.wait(timeout)

    def assert_nothing_left(self, timeout: float = 15.0) -> None:
        wait_for(lambda: not self.leftovers(), timeout, "its end", server=self)

    def destroy(self) -> None:
        """Kill whatever is left of it; for the end of a test."""
        for pid in self.tree():
            with suppress(ProcessLookupError):  # some end with others
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


@contextmanager
def start_server(
    args: Sequence[str] = GRANIAN, env: Mapping[str, str] | None = None, *, cwd: Path = ROOT, port: int | None = None
) -> Iterator[Server]:
    """Run `args` (first a command of this environment, "{port}" filled in) until the block ends.

    Granian and uvicorn get `--port` by themselves. Nothing of the server outlives the block.
    """
    port = port or free_port()
    line = [part.replace("{port}", str(port)) for part in args]
    if line[0] in ("granian", "uvicorn") and "--port" not in line:
        line += ["--port", str(port)]
    server = Server(line, env or {}, cwd=cwd, port=port)
    try:
        yield server
    finally:
        server.destroy()
