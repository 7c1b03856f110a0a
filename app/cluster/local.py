"""One replica process started from here: spawn it, pass its output on, know why it ended, end it for certain."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from contextlib import suppress

import msgspec

from app.cluster.notices import Notices
from app.cluster.pidfd import PidWatch
from app.cluster.process import python_command
from app.engines.spec import ReplicaSpec
from app.telemetry.logging import relayed

_TAIL_LINES = 20
_KEPT_LINES = 400
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): .+")
_KILL_AFTER_S = 5.0


class LocalReplica:
    """A child process in a session of its own, so that its whole group can be killed."""

    def __init__(self, spec: ReplicaSpec, number: int = 0) -> None:
        """`number` tells it from others of its parent where the master chooses the ids."""
        self.spec = spec
        chosen = max(spec.replica_id, spec.wanted_id)
        self.name = f"{spec.stage.name}/{number if chosen < 0 else chosen}"
        self.notices = Notices()
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None
        self._watch: PidWatch | None = None

    async def spawn(self) -> None:
        """Start the process; it registers with the master by itself."""
        self._tail.clear()
        with self.notices.opened() as notify_fd:
            self.spec.notify_fd = notify_fd
            self._process = await asyncio.create_subprocess_exec(
                *python_command("app.engines.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[notify_fd],
                env=self._environment(),
            )
        # asyncio reports an exit once the pipes are closed, and the replica's own children may hold them open.
        self._watch = PidWatch(self._process.pid, self.kill)
        await self._hand_over(self._process)
        self._pump = asyncio.create_task(self._pump_output(self._process), name=f"output of {self.name}")

    async def _hand_over(self, process: asyncio.subprocess.Process) -> None:
        """The spec goes down the lifeline, not into a file: it holds the token."""
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self.spec) + b"\n")
        with suppress(ConnectionError):  # it has ended already, which wait() will tell
            await process.stdin.drain()

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, **self.spec.stage.env, "PYTHONUNBUFFERED": "1"}
        if self.spec.stage.devices not in ("", "cpu"):
            environment["CUDA_VISIBLE_DEVICES"] = self.spec.stage.devices
        return environment

    async def _pump_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await _read_line(process.stdout):
            if line.isspace():
                continue
            self._tail.append(line)
            sys.stderr.write(relayed(self.name, line, self.spec.log) + "\n")

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def wait(self) -> int:
        """Wait for the end; the exit code (negative: the signal). The rest of its group is killed."""
        assert self._process is not None
        code = await self._process.wait()
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=1)
        return code

    def tail(self) -> str:
        """The last lines it printed."""
        return "\n".join(list(self._tail)[-_TAIL_LINES:])

    def first_error(self, beside: str) -> str:
        """The first error that it printed, unless `beside` tells it already: what a process of the engine's died of."""
        errors = (match[0] for line in self._tail if (match := _ERROR.search(line)))
        return next((error for error in errors if error[:80] not in beside), "")

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, wait up to `grace_s` seconds, then kill the group."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout=grace_s)
        self.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), timeout=_KILL_AFTER_S)
        if self._watch is not None:
            self._watch.close()
        self.notices.close()
        if process.stdin is not None:
            process.stdin.close()

    def kill(self) -> None:
        """SIGKILL to its whole group; nothing happens before it has been spawned."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


async def _read_line(stream: asyncio.StreamReader) -> str:
    """One line without its end; a line longer than the stream's buffer comes in pieces. Empty at the end."""
    try:
        line = await stream.readuntil()
    except asyncio.LimitOverrunError as error:
        line = await stream.read(error.consumed)
    except asyncio.IncompleteReadError as error:
        line = error.partial
    if not line:
        return ""
    return line.decode(errors="replace").rstrip() or " "


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
