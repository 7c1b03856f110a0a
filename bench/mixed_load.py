"""Mixed load on the real tiny model: `python -m bench.mixed_load --minutes 60`.

Every kind of client at once (bench.mixed_clients), /health asked 20 times a second on a connection of its own, and
every ten seconds the memory, file descriptors and shared memory of every process. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import tree, variants
from bench.measure import percentile
from bench.model import build
from bench.server import Server, running

SAMPLE_S = 10.0
PROBE_S = 0.05
JUDGED_MINUTES = 20.0
"""In a shorter run vLLM's caches are still filling, and growth says nothing."""
WARM_UP = 0.2
"""The part of the run in which caches fill: what is flat is judged on the rest."""
GROWTH_MB = 12.0
"""What a process may grow after the warm-up."""
GROWTH_FILES = 32
"""As many clients are connected at a time, now to this API worker, now to that one."""
HEALTH_P99_MS = 50.0
_ROLES = ("main", "api", "master", "replica", "engine")


@dataclass
class Series:
    """What one process used, sample by sample."""

    rss_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


@dataclass
class Result:
    """One run. Times in milliseconds; `processes` is in the order of their roles."""

    minutes: float
    counts: dict[str, int]
    unexpected: dict[str, int]
    probes: int
    probe_failures: list[str]
    health_p50: float
    health_p99: float
    health_longest: float
    processes: dict[str, Series]
    shm: list[int]
    foreign: float
    """Cores that others used meanwhile: with many, the times of /health are not the server's."""

    def problems(self) -> list[str]:
        """What is not as it should be."""
        found = [f"{count} x {what}" for what, count in self.unexpected.items()]
        found += [f"/health: {failure}" for failure in self.probe_failures[:5]]
        if self.health_p99 >= HEALTH_P99_MS:
            found.append(f"/health p99 is {self.health_p99:.1f} ms, while others used {self.foreign:.1f} cores")
        return found + (self._grown() if self.minutes >= JUDGED_MINUTES else [])

    def _grown(self) -> list[str]:
        found = []
        for name, series in self.processes.items():
            if (grown := growth(series.rss_mb)) > GROWTH_MB:
                found.append(f"{name} grew by {grown:.1f} MB after the warm-up")
            if (more := growth(series.files)) > GROWTH_FILES:
                found.append(f"{name} has {more:.0f} more files open than after the warm-up")
        if growth(self.shm) > 0:
            found.append(f"{growth(self.shm):.0f} more files in /dev/shm than after the warm-up")
        return found


def growth(samples: list[float] | list[int]) -> float:
    """From the median just after the warm-up to that of the end."""
    start, width = int(len(samples) * WARM_UP), max(1, len(samples) // 10)
    return statistics.median(samples[-width:]) - statistics.median(samples[start : start + width])


def run(minutes: float) -> Result:
    """Serve, load and measure for so long."""
    tree.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        model = build(Path(directory) / "tiny")
        with running(variants.ours(2), model) as server:
            seconds = str(minutes * 60)
            clients = _start("bench.mixed_clients", str(server.port), seconds)
            prober = _start("bench.prober", str(server.port), seconds, str(PROBE_S))
            before = tree.machine_cpu() - tree.cpu_of_descendants()
            processes, shm = _sample(server, clients)
            foreign = tree.machine_cpu() - tree.cpu_of_descendants() - before
            seen, health = (json.loads(process.communicate(timeout=300)[0]) for process in (clients, prober))
    times = [1000 * time_s for time_s in health["times_s"]]
    return Result(
        minutes=minutes,
        counts=seen["counts"],
        unexpected=seen["unexpected"],
        probes=len(times),
        probe_failures=health["failures"][:20],
        health_p50=percentile(times, 50),
        health_p99=percentile(times, 99),
        health_longest=max(times),
        processes=processes,
        shm=shm,
        foreign=round(foreign / (minutes * 60), 2),
    )


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=variants.ROOT, stdout=subprocess.PIPE, text=True)


def _sample(server: Server, clients: subprocess.Popen[str]) -> tuple[dict[str, Series], list[int]]:
    series: dict[str, Series] = {}
    shm: list[int] = []
    while clients.poll() is None:
        for name, process in _processes(server):
            one = series.setdefault(name, Series())
            one.rss_mb.append(round(process.rss_mb, 1))
            one.files.append(len(os.listdir(f"/proc/{process.pid}/fd")))
        shm.append(len(os.listdir("/dev/shm")))
        time.sleep(SAMPLE_S)
    return dict(sorted(series.items(), key=lambda item: _ROLES.index(item[0].split(" ")[0]))), shm


def _processes(server: Server) -> Iterator[tuple[str, tree.Process]]:
    for name, process in server.processes().items():
        if name.split(" ")[0] in _ROLES:
            yield name, process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    result = run(parser.parse_args().minutes)
    print(json.dumps(asdict(result) | {"problems": result.problems()}))


if __name__ == "__main__":
    main()
