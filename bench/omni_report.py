"""The page of bench.omni: what was measured, what was wanted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.measure import load_average, percentile
from bench.omni_loop import CODES, TOKENS, Heard, Seen
from bench.report import conditions, goal_rows

REFERENCE, OURS = SIDES = ("transformers' generate", "omni-app")
SOONER, MORE = 3.0, 4.0
"""How much sooner the first sound is wanted with one client, and how many more answers with the most clients."""


@dataclass(frozen=True)
class Results:
    """`seen`: by number of clients and side, all rounds. `parameters` of the model, `threads` of either side."""

    seen: dict[int, dict[str, list[Seen]]]
    parameters: int
    threads: int


def _heard(rounds: list[Seen]) -> list[Heard]:
    return [heard for seen in rounds for heard in seen.heard]


def _median(rounds: list[Seen], name: str) -> float:
    return statistics.median(getattr(heard, name) for heard in _heard(rounds))


def _per_s(rounds: list[Seen]) -> float:
    return sum(len(seen.heard) for seen in rounds) / sum(seen.wall_s for seen in rounds)


def _goals(results: Results) -> Iterator[tuple[str, str, str, bool]]:
    """What, the measured value, the wanted one, whether it was reached."""
    one, most = results.seen[min(results.seen)], max(results.seen)
    sooner = _median(one[REFERENCE], "first_s") / _median(one[OURS], "first_s")
    yield "first sound, one client: sooner by", f"{sooner:.1f} x", f">= {SOONER:g} x", sooner >= SOONER
    many = results.seen[most]
    more = _per_s(many[OURS]) / _per_s(many[REFERENCE])
    yield f"answers/s, {most} clients: more by", f"{more:.1f} x", f">= {MORE:g} x", more >= MORE


def missed(results: Results) -> list[str]:
    """What was not reached."""
    return [what for what, _, _, reached in _goals(results) if not reached]


def page(results: Results, around: dict[str, Any]) -> str:
    """The whole page as markdown."""
    return "\n".join(
        [
            "# Performance of omni models",
            "",
            "Written by `python -m bench.omni`, which says how it measures. The model is a Qwen2.5-Omni of random "
            f"float32 weights with {results.parameters / 1e6:.0f} million parameters, on the CPU, with "
            f"{results.threads} threads on either side; an answer has {TOKENS} tokens of text and {CODES} codes, which "
            "are two seconds of sound.",
            "",
            f"{conditions(around)}, after: {load_average():.2f}.",
            "",
            *goal_rows(_goals(results)),
            "",
            "RTF is the time of an answer as a share of the time that its sound lasts. transformers generates sound "
            "for one conversation at a time, so its clients wait for each other; all of its sound comes at the end.",
            "",
            "| clients | side | first text p50 s | first sound p50 / p99 s | whole p50 s | RTF p50 | answers/s "
            "| tokens/s |",
            "|---|---|---|---|---|---|---|---|",
            *(_row(clients, side, sides[side]) for clients, sides in results.seen.items() for side in SIDES),
            "",
        ]
    )


def _row(clients: int, side: str, rounds: list[Seen]) -> str:
    heard = _heard(rounds)
    latest = percentile((one.first_s for one in heard), 99)
    rtf = statistics.median(one.total_s / one.audio_s for one in heard)
    tokens = sum(one.tokens for one in heard) / sum(seen.wall_s for seen in rounds)
    return (
        f"| {clients} | {side} | {_median(rounds, 'text_s'):.3f} | {_median(rounds, 'first_s'):.3f} / {latest:.3f} "
        f"| {_median(rounds, 'total_s'):.3f} | {rtf:.3f} | {_per_s(rounds):.3f} | {tokens:.1f} |"
    )
