"""The page of bench.images: what was measured, what was wanted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.images_loop import Picture
from bench.measure import load_average, percentile
from bench.report import conditions, goal_rows

ADDED_MS = 5.0
ADDED_SHARE = 0.03
SPEED_UP = 1.5
HEALTH_P99_MS = 50.0
STOP_S = 1.0


@dataclass(frozen=True)
class Case:
    """One picture drawn many times: seconds of the loop, of FastAPI, of omni-app, which took turns."""

    picture: Picture
    loop_s: list[float]
    fastapi_s: list[float]
    ours_s: list[float]

    def added_s(self, side: list[float]) -> float:
        """What a server takes longer than the loop, picture by picture: the median."""
        return statistics.median(theirs - plain for theirs, plain in zip(side, self.loop_s, strict=True))


@dataclass(frozen=True)
class Results:
    """Everything in seconds. `burst_s`: the mixed requests by side; the first is the plain pipeline.

    `leaving_s`: from a client's leaving to the next request's turn, by side. `encoding_s` by the side of the picture.
    """

    fast: Case
    long: Case
    burst_s: dict[str, float]
    leaving_s: dict[str, list[float]]
    encoding_s: dict[int, float]
    health_s: list[float]


def _goals(results: Results) -> Iterator[tuple[str, str, str, bool]]:
    """What, the measured value, the wanted one, whether it was reached."""
    fast, long = results.fast, results.long
    added, share = fast.added_s(fast.ours_s) * 1000, long.added_s(long.ours_s) / statistics.median(long.loop_s)
    yield "added to a picture, one client", f"{added:.1f} ms", f"<= {ADDED_MS:g} ms", added <= ADDED_MS
    yield "added to a picture of a second or more", f"{share:.1%}", f"<= {ADDED_SHARE:.0%}", share <= ADDED_SHARE
    sequential, _, together, _ = results.burst_s.values()
    gain = sequential / together
    yield "eight mixed requests against a loop", f"{gain:.2f} x", f">= {SPEED_UP:g} x", gain >= SPEED_UP
    stop = max(results.leaving_s["omni-app"])
    yield "from a client's leaving to the next request, longest", f"{stop:.2f} s", f"<= {STOP_S:g} s", stop <= STOP_S
    health = percentile(results.health_s, 99) * 1000
    yield "/health meanwhile, p99", f"{health:.1f} ms", f"<= {HEALTH_P99_MS:g} ms", health <= HEALTH_P99_MS


def missed(results: Results) -> list[str]:
    """What was not reached."""
    return [what for what, _, _, reached in _goals(results) if not reached]


def page(results: Results, around: dict[str, Any]) -> str:
    """The whole page as markdown."""
    return "\n".join(
        [
            "# Performance of pictures",
            "",
            "Written by `python -m bench.images`, which says how it measures. The model is a StableDiffusionPipeline "
            "with a million random weights: the smaller the pipeline, the more a server's own work shows.",
            "",
            f"{conditions(around)}, after: {load_average():.2f}.",
            "",
            *goal_rows(_goals(results)),
            "",
            "## One client, one picture after the other",
            "",
            "| picture | side | median ms | p90 ms | added ms |",
            "|---|---|---|---|---|",
            *_case_rows(results.fast),
            *_case_rows(results.long),
            "",
            "## Eight requests at once, 6 to 20 steps",
            "",
            "| side | s | pictures/s |",
            "|---|---|---|",
            *(f"| {side} | {seconds:.2f} | {8 / seconds:.1f} |" for side, seconds in results.burst_s.items()),
            "",
            "## A client leaves in the middle of a picture",
            "",
            "| side | until the next request has its turn, median s | longest s |",
            "|---|---|---|",
            *(f"| {x} | {statistics.median(y):.2f} | {max(y):.2f} |" for x, y in results.leaving_s.items()),
            "",
            "## Encoding",
            "",
            *_encoding(results),
            "",
        ]
    )


def _case_rows(case: Case) -> Iterator[str]:
    what = f"{case.picture.side}x{case.picture.side}, {case.picture.steps} steps"
    sides = {"plain pipeline": case.loop_s, "FastAPI": case.fastapi_s, "omni-app": case.ours_s}
    for name, times in sides.items():
        added = f"{case.added_s(times) * 1000:.1f}" if times is not case.loop_s else ""
        median, late = statistics.median(times) * 1000, percentile(times, 90) * 1000
        yield f"| {what} | {name} | {median:.1f} | {late:.1f} | {added} |"


def _encoding(results: Results) -> Iterator[str]:
    times = ", ".join(f"{side}x{side} {seconds * 1000:.1f} ms" for side, seconds in results.encoding_s.items())
    case = results.long
    share = results.encoding_s[case.picture.side] / statistics.median(case.ours_s)
    yield f"A noisy picture as PNG: {times}. Of the long picture's time above that is {share:.2%}."
