"""One level of load on one running server, measured from outside."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TypeVar

from bench import tree
from bench.load import TOKENS, Seen, Wave
from bench.server import BenchError, Server

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Level:
    """What one level of one round came to. Times in milliseconds, processor time in seconds per 1,000 tokens."""

    variant: str
    round: int
    streams: int
    tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    pause_p50: float
    pause_p99: float
    """Over streams, the longest pause between two chunks of each."""
    total_p50: float
    total_p99: float
    cpu: float
    """Of the whole process tree of the server."""
    cpu_by_role: dict[str, float]
    load_cpu: float
    """Of the load generator."""
    foreign: float
    """Cores that others used meanwhile: above about 0.1 the level is not worth much."""
    chunks: tuple[int, int]
    """The least and the most chunks with text of a stream; 64 tokens should be 64."""
    tokens: tuple[int, int]
    chunks_per_read: float


class LoadGenerator:
    """The load process of one server, idle between waves."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, wave: Wave, around: Callable[[], None]) -> Seen:
        """One wave; `around` is called right before and right after it.

        Raises:
            BenchError: the wave failed; the load generator has printed why.
        """
        self._say(json.dumps(asdict(wave)))
        self._expect("ready")
        around()
        self._say("go")
        self._expect("done")
        around()
        return Seen(**json.loads(self._line()))

    def _say(self, line: str) -> None:
        self._input.write(line + "\n")
        self._input.flush()

    def _expect(self, word: str) -> None:
        if (line := self._line().strip()) != word:
            raise BenchError(f"the load generator said {line!r} in place of {word!r}")

    def _line(self) -> str:
        if not (line := self._output.readline()):
            raise BenchError("the load generator ended; its message is above")
        return line

    def close(self) -> None:
        self._input.close()
        self._process.wait(10)
        self._output.close()


class _Meter:
    """Adds up what the processors did between pairs of calls."""

    def __init__(self, load_pid: int) -> None:
        self._load_pid = load_pid
        self._calls = 0
        self.server_s = 0.0
        self.machine_s = 0.0

    def __call__(self) -> None:
        sign = 1 if self._calls % 2 else -1
        self._calls += 1
        self.server_s += sign * tree.cpu_of_descendants(without=self._load_pid)
        self.machine_s += sign * tree.machine_cpu()


def measure(server: Server, load: LoadGenerator, streams: int, waves: int, round_number: int) -> Level:
    """Run `waves` waves of `streams` streams each.

    Raises:
        BenchError: a stream failed.
    """
    meter = _Meter(load.pid)
    before = server.processes()
    seen = [
        load.run(Wave(server.port, streams, f"{round_number}.{streams}.{number}"), meter) for number in range(waves)
    ]
    after = server.processes()
    wall, load_s = sum(x.wall_s for x in seen), sum(x.cpu_s for x in seen)
    chunks, tokens = _flat(x.chunks for x in seen), _flat(x.tokens for x in seen)
    thousands = sum(tokens) / 1000
    pauses, totals = _flat(x.gaps_s for x in seen), _flat(x.total_s for x in seen)
    ttft = _flat(x.ttft_s for x in seen)
    return Level(
        variant=server.variant.name,
        round=round_number,
        streams=streams,
        tokens_per_s=sum(tokens) / wall,
        ttft_p50=percentile(ttft, 50) * 1000,
        ttft_p99=percentile(ttft, 99) * 1000,
        pause_p50=percentile(pauses, 50) * 1000,
        pause_p99=percentile(pauses, 99) * 1000,
        total_p50=percentile(totals, 50) * 1000,
        total_p99=percentile(totals, 99) * 1000,
        cpu=meter.server_s / thousands,
        cpu_by_role={
            role: (process.cpu_s - before[role].cpu_s) / thousands
            for role, process in after.items()
            if role in before and process.cpu_s > before[role].cpu_s
        },
        load_cpu=load_s / thousands,
        foreign=max(0.0, meter.machine_s - meter.server_s - load_s) / wall,
        chunks=(min(chunks), max(chunks)),
        tokens=(min(tokens), max(tokens)),
        chunks_per_read=sum(chunks) / sum(x.reads for x in seen),
    )


def one_chunk_per_token(level: Level) -> bool:
    """Whether every stream had TOKENS tokens in TOKENS chunks."""
    return level.chunks == level.tokens == (TOKENS, TOKENS)


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _flat(lists: Iterable[list[T]]) -> list[T]:
    return [value for values in lists for value in values]


def api_memory(server: Server) -> list[float]:
    """Resident MB of each API process."""
    return [process.rss_mb for role, process in server.processes().items() if role.startswith("api ")]


def load_average() -> float:
    """Processes that wanted to run in the last minute."""
    return os.getloadavg()[0]
