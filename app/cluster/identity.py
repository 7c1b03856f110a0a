"""Which server this process belongs to. Standard library only; Linux (/proc).

All workers of one server must agree on the answer without talking to each other, and no two servers may share one.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path

WORKER_MODULES = ("granian", "uvicorn", "hypercorn")


@dataclass(frozen=True)
class Server:
    """The process that owns a server; no other one has its pid and start time (clock ticks since boot)."""

    pid: int
    ticks: int

    @property
    def alive(self) -> bool:
        """Whether that very process still runs (a zombie does not)."""
        return start_ticks(self.pid) == self.ticks

    def digest(self, mount: str) -> str:
        """Twelve hex digits for this server and one mount of it, unique over reboots and pid namespaces."""
        return _digest(*_kernel(), str(self.pid), str(self.ticks), mount)


def host_identity() -> str:
    """Twelve hex digits that are equal for processes that know each other by pid: same boot, same pid namespace.

    Addresses do not tell: two containers can have the same one, and one host has several.
    """
    return _digest(*_kernel())


def _kernel() -> tuple[str, str]:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")


def _digest(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def current_server() -> Server:
    """The server that this process works for: the parent of a server's worker, otherwise this process itself.

    A process that the user's own code started with multiprocessing is a server of its own: nothing is shared by
    accident.
    """
    pid = _worker_parent() or os.getpid()
    return Server(pid, start_ticks(pid) or 0)


def _worker_parent() -> int | None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        process = multiprocessing.current_process()
        module = getattr(getattr(process, "_target", None), "__module__", None) or ""
        if process.name == "granian-worker" or module.partition(".")[0] in WORKER_MODULES:
            return parent.pid
    if "gunicorn.arbiter" in sys.modules:
        return os.getppid()
    return None
