"""docs/soak.md: what was run how often, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.mixed_load import growth

if TYPE_CHECKING:
    from bench.soak import Progress

_INTRODUCTION = """\
# Soak

Written by `make soak` (`python -m bench.soak`); `--times` and `--minutes` choose how long it takes.
"""
_ROWS = """
## Faults

Each row with a server of its own on the stub engine. The matrix is in tests/faults/matrix.py with what is expected of
each of its rows, the other rows are in bench/soak_rows.py.

| row | played | passed | longest |
|---|---|---|---|
"""
_MIXED = """
## Mixed load

The tiny model on vLLM behind two API workers; every kind of client at once (bench/mixed_clients.py), and /health asked
20 times a second. Growth is from the median after the first fifth of the run to the median of its last tenth; it
is judged in runs of 20 minutes and more.

"""


def write(progress: Progress, path: Path) -> None:
    """Replace the document."""
    path.write_text("".join([_INTRODUCTION, *_head(progress.environment), *_rows(progress), *_mixed(progress.mixed)]))


def _head(found: dict[str, Any]) -> Iterator[str]:
    changed = ", with uncommitted changes" if found["changed"] else ""
    yield f"\nCommit {found['commit']}{changed}, {found['date']}. Python {found['python']}.\n"


def _rows(progress: Progress) -> Iterator[str]:
    yield _ROWS
    for name, tally in progress.rows.items():
        yield f"| {name} | {tally.played} | {tally.passed} | {tally.longest_s:g} s |\n"
    for name, tally in progress.rows.items():
        for failure in tally.failures:
            yield f"\n{name} failed:\n\n```\n{failure}\n```\n"


def _mixed(result: dict[str, Any] | None) -> Iterator[str]:
    if result is None:
        return
    yield _MIXED
    yield f"{result['minutes']:g} minutes. "
    if "counts" in result:
        counts = ", ".join(f"{count} x {kind}" for kind, count in result["counts"].items())
        yield f"{counts}. /health: {result['probes']} probes, p50 {result['health_p50']:.1f} ms, "
        yield f"p99 {result['health_p99']:.1f} ms, longest {result['health_longest']:.1f} ms, "
        yield f"{len(result['probe_failures'])} failed. Others used {result['foreign']:g} cores meanwhile.\n\n"
        yield from _processes(result)
    problems = result["problems"] or ["none"]
    yield "\nProblems: " + "; ".join(problem.replace("\n", " ") for problem in problems) + "\n"


def _processes(result: dict[str, Any]) -> Iterator[str]:
    yield "| process | RSS MB at first | at last | growth | open files | growth |\n|---|---|---|---|---|---|\n"
    for name, series in result["processes"].items():
        rss, files = series["rss_mb"], series["files"]
        yield f"| {name} | {rss[0]} | {rss[-1]} | {growth(rss):+.1f} | {files[-1]} | {growth(files):+.0f} |\n"
    yield f"\nFiles in /dev/shm: {result['shm'][0]} at first, {result['shm'][-1]} at last.\n"
