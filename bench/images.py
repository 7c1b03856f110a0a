"""Pictures: what the server adds to a stock pipeline, in one run: `python -m bench.images`.

The same tiny random StableDiffusionPipeline is asked for the same pictures by three sides: a Python loop that calls it,
the smallest FastAPI server around it, and omni-app. They take turns picture by picture, so that a busy minute of the
machine hits all of them, and figures are medians. Then eight requests with different numbers of steps come at once,
with a prober at /health beside them; clients leave in the middle of a picture; and what encoding takes is told.

Writes a page of results (--out) that says what was wanted, and exits with 1 if something was not reached.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import images_report as report
from bench import tree, variants
from bench.images_clients import Loop, ask, at_once, health_during, leave
from bench.images_loop import Picture
from bench.report import environment
from bench.server import BenchError, Server, running

FAST = Picture(steps=10)
LONG_S = 1.2
"""A long picture is given as many steps as make the plain pipeline take so long."""
LONG_SIDE = 128
MOST_STEPS = 200
MIXED = tuple(Picture(steps=steps, seed=steps) for steps in range(6, 22, 2))
TOGETHER = ("--step-execution", "--max-num-seqs", str(len(MIXED)))
LEAVES_AFTER_S = 0.3


def main() -> None:
    """Measure, write the page; exit code 1 if a wanted figure was not reached."""
    options = _options()
    tree.adopt_orphans()
    around = environment()
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as directory:
            results = _measure(_model(Path(directory) / "sd"), options)
    except BenchError as error:
        sys.exit(f"stopped early: {error}")
    page = report.page(results, around)
    options.out.write_text(page)
    print(page)
    sys.exit(1 if report.missed(results) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few pictures of each kind")
    parser.add_argument("--out", type=Path, default=Path("images.md"), help="the page to write (default: images.md)")
    options = parser.parse_args()
    options.pictures, options.bursts, options.seconds = (6, 2, 3) if options.quick else (60, 10, 20)
    return options


def _model(directory: Path) -> Path:
    from tests.tiny_diffusion import build

    return build("sd", directory)


def _measure(model: Path, options: argparse.Namespace) -> report.Results:
    pictures, bursts = options.pictures, options.bursts
    with ExitStack() as stack:
        loop = stack.enter_context(Loop(model))
        plain = stack.enter_context(running(variants.fastapi_pictures(), model))
        ours = stack.enter_context(running(variants.pictures(), model))
        long = _long(loop)
        fast_times, long_times = (
            _in_turns(loop, plain, ours, x, y) for x, y in ((FAST, pictures), (long, pictures // 3))
        )
        left = {side: _leaving(server, pictures // 4 + 1) for side, server in (("FastAPI", plain), ("omni-app", ours))}
        encoding = {side: loop.encoding_s(side) for side in (FAST.side, LONG_SIDE, 1024)}
        sequential, in_line = (
            _bursts(bursts, lambda: loop.sequence(MIXED)),
            _bursts(bursts, lambda: at_once(plain, MIXED)),
        )
    with running(variants.pictures(*TOGETHER), model) as server:
        together = _bursts(bursts, lambda: at_once(server, MIXED))
        probes = health_during(server, lambda: at_once(server, MIXED), options.seconds)
    with running(variants.pictures(*TOGETHER, workers=2), model) as server:
        two_workers = _bursts(bursts, lambda: at_once(server, MIXED))
    return report.Results(
        fast=report.Case(FAST, *fast_times),
        long=report.Case(long, *long_times),
        burst_s={
            "plain pipeline, one after the other": sequential,
            "FastAPI": in_line,
            f"omni-app {' '.join(TOGETHER)}": together,
            "the same with two API workers": two_workers,
        },
        leaving_s=left,
        encoding_s=encoding,
        health_s=probes,
    )


def _long(loop: Loop) -> Picture:
    """A picture that takes the plain pipeline LONG_S."""
    few = Picture(steps=8, side=LONG_SIDE)
    loop.draw(few)
    a_step = statistics.median(loop.draw(few) for _ in range(5)) / few.steps
    return replace(few, steps=min(MOST_STEPS, round(LONG_S / a_step) + 1))


def _in_turns(
    loop: Loop, plain: Server, ours: Server, picture: Picture, count: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds for each of `count` pictures: the loop's, FastAPI's, ours. The order changes from picture to picture."""
    sides: list[Callable[[Picture], float]] = [loop.draw, lambda x: ask(plain, x), lambda x: ask(ours, x)]
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    for number in range(-2, count):
        for turn in range(3):
            side = (number + turn) % 3
            seconds = sides[side](replace(picture, seed=number % 1000))
            if number >= 0:
                times[side].append(seconds)
    return times


def _bursts(count: int, burst: Callable[[], float]) -> float:
    """Seconds that a burst takes: the median, after one that does not count."""
    return statistics.median([burst() for _ in range(count + 1)][1:])


def _leaving(server: Server, count: int) -> list[float]:
    """Seconds from a client's leaving to the moment at which the next request is computed, which waits for it."""
    quick = Picture(steps=2)
    usual = statistics.median(ask(server, quick) for _ in range(9))
    times = []
    for _ in range(count):
        leave(server, Picture(steps=MOST_STEPS, side=LONG_SIDE), LEAVES_AFTER_S)
        times.append(max(0.0, ask(server, quick) - usual))
    return times


if __name__ == "__main__":
    main()
