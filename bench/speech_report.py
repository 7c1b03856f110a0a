"""The page of bench.speech: what was measured, what was wanted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.measure import Level, load_average, percentile
from bench.report import conditions, goal_rows
from bench.speech_loop import SENTENCES_A_TEXT, THREADS, Heard, Seen

LOOP, FASTAPI, OURS = SIDES = ("a Python loop", "FastAPI around the voice", "omni-app")
ADDED_MS = 10.0
THROUGHPUT = 0.95
TEXT_COST = 1.05


@dataclass(frozen=True)
class Results:
    """`spoken`: by number of clients and side, all rounds. `text`: levels of both servers. `encoding_ms` by format."""

    spoken: dict[int, dict[str, list[Seen]]]
    text: list[Level]
    encoding_ms: dict[str, float]


def _heard(rounds: list[Seen]) -> list[Heard]:
    return [heard for seen in rounds for heard in seen.heard]


def _first_ms(rounds: list[Seen], percent: float = 50) -> float:
    return percentile((heard.first_s for heard in _heard(rounds)), percent) * 1000


def _per_s(rounds: list[Seen]) -> float:
    return sum(len(seen.heard) for seen in rounds) / sum(seen.wall_s for seen in rounds)


def _rtf(rounds: list[Seen]) -> float:
    return statistics.median(heard.total_s / heard.audio_s for heard in _heard(rounds))


def _text_cost(results: Results, streams: int) -> tuple[float, float]:
    """CPU seconds for 1,000 tokens, medians of the rounds: with one stage, and with a voice behind it."""
    names = list(dict.fromkeys(level.variant for level in results.text))
    alone, voiced = (
        statistics.median(level.cpu for level in results.text if (level.variant, level.streams) == (name, streams))
        for name in names
    )
    return alone, voiced


def _goals(results: Results) -> Iterator[tuple[str, str, str, bool]]:
    """What, the measured value, the wanted one, whether it was reached."""
    one = results.spoken[1]
    added = _first_ms(one[OURS]) - _first_ms(one[LOOP])
    yield "added to the first sound, one client", f"{added:.1f} ms", f"<= {ADDED_MS:g} ms", added <= ADDED_MS
    for clients, sides in results.spoken.items():
        ratio = _per_s(sides[OURS]) / _per_s(sides[FASTAPI])
        what = f"requests/s of {clients} client{'s' if clients > 1 else ''} against FastAPI"
        yield what, f"{ratio:.2f} x", f">= {THROUGHPUT:g} x", ratio >= THROUGHPUT
    for streams in sorted({level.streams for level in results.text}):
        alone, voiced = _text_cost(results, streams)
        what = f"CPU per token of text beside a voice, {streams} streams"
        yield what, f"{voiced / alone:.3f} x", f"<= {TEXT_COST:g} x", voiced <= TEXT_COST * alone


def missed(results: Results) -> list[str]:
    """What was not reached."""
    return [what for what, _, _, reached in _goals(results) if not reached]


def page(results: Results, around: dict[str, Any]) -> str:
    """The whole page as markdown."""
    return "\n".join(
        [
            "# Performance of speech",
            "",
            "Written by `python -m bench.speech`, which says how it measures. The voice is the demo's, on the CPU, "
            f"with {THREADS} threads on every side; a text has {SENTENCES_A_TEXT} sentences and comes as bare samples.",
            "",
            f"{conditions(around)}, after: {load_average():.2f}.",
            "",
            *goal_rows(_goals(results)),
            "",
            "## Texts that are spoken",
            "",
            "RTF is the time of an answer as a share of the time that it lasts; the loop has no clients but threads "
            "that wait for a place at the voice, so its first sound is late where there are many.",
            "",
            "| clients | side | first sound p50 / p99 ms | whole p50 ms | RTF p50 | requests/s | s of sound a s |",
            "|---|---|---|---|---|---|---|",
            *(_row(clients, name, sides[name]) for clients, sides in results.spoken.items() for name in SIDES),
            "",
            "## Text alone, of a server that could speak",
            "",
            "| streams | server | tokens/s | TTFT p50 ms | CPU s per 1,000 tokens |",
            "|---|---|---|---|---|",
            *_text_rows(results.text),
            "",
            "## Encoding",
            "",
            "Milliseconds of processor time for a second of sound, in pieces: "
            + ", ".join(f"{format} {cost:.1f}" for format, cost in results.encoding_ms.items())
            + ".",
            "",
        ]
    )


def _row(clients: int, name: str, rounds: list[Seen]) -> str:
    heard = _heard(rounds)
    whole = statistics.median(one.total_s for one in heard) * 1000
    sound = sum(one.audio_s for one in heard) / sum(seen.wall_s for seen in rounds)
    return (
        f"| {clients} | {name} | {_first_ms(rounds):.1f} / {_first_ms(rounds, 99):.1f} | {whole:.1f} "
        f"| {_rtf(rounds):.4f} | {_per_s(rounds):.2f} | {sound:.0f} |"
    )


def _text_rows(levels: list[Level]) -> Iterator[str]:
    for streams in sorted({level.streams for level in levels}):
        for name in dict.fromkeys(level.variant for level in levels):
            own = [level for level in levels if (level.streams, level.variant) == (streams, name)]
            values = [
                statistics.median(getattr(level, key) for level in own) for key in ("tokens_per_s", "ttft_p50", "cpu")
            ]
            yield f"| {streams} | {name} | {values[0]:,.0f} | {values[1]:.1f} | {values[2]:.3f} |"
