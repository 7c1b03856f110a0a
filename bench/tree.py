"""What a server's processes use, read from /proc: processor time of the whole tree, and memory of each process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One living process. `cpu_s` holds the time of its ended children that it has waited for."""

    pid: int
    parent: int
    cpu_s: float
    command: str
    title: str

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB (10^6 bytes); shared pages count in each process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        return 0.0


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own: no daemon of a server escapes the count."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int, *, without: int = 0) -> list[Process]:
    """All living processes below `root`, but for `without` and what is below that."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        own = [child for child in children.get(todo.pop(), []) if child.pid != without]
        found += own
        todo += [child.pid for child in own]
    return found


def cpu_of_descendants(*, without: int = 0) -> float:
    """Processor seconds of everything below this process, living or ended, but for a living child `without`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = descendants(os.getpid(), without=without)
    return ended.ru_utime + ended.ru_stime + sum(process.cpu_s for process in living)


def machine_cpu() -> float:
    """Processor seconds of the whole machine since boot, idle time left out."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICKS


def kill_descendants() -> None:
    """SIGKILL to everything below this process."""
    for process in descendants(os.getpid()):
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _all() -> list[Process]:
    return [found for entry in Path("/proc").iterdir() if entry.name.isdigit() and (found := _read(entry)) is not None]


def _read(entry: Path) -> Process | None:
    try:
        before, _, after = (entry / "stat").read_text().rpartition(")")
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = after.split()
    ticks = sum(int(value) for value in fields[11:15])
    return Process(int(entry.name), int(fields[1]), ticks / _TICKS, command, before.partition("(")[2])
