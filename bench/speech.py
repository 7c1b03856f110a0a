"""Speech: what the server adds to a voice, in one run: `python -m bench.speech`.

The demo's voice speaks the same texts on three sides: called in a Python loop, behind the smallest FastAPI server,
which streams a sentence at a time out of a thread pool, and behind omni-app. All have as many threads for it. They take
turns, load by load, so that a busy minute of the machine hits all of them. Then streams of text alone: of a server with
one language model, and of one that has a voice behind it, a server at a time, in rounds.

Writes a page of results (--out) that says what was wanted, and exits with 1 if something was not reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench import speech_report as report
from bench import tree, variants
from bench.measure import Level, LoadGenerator, measure
from bench.model import build
from bench.report import environment
from bench.server import BenchError, running
from bench.speech_loop import THREADS, Load, Seen
from bench.worker import Worker

CLIENTS = (1, 8, 32)
_VOICE = (
    f"pipeline: custom\nstages: [{{stage_id: 0, name: voice, kind: speech, model: demo, max_num_seqs: {THREADS}}}]\n"
)
_WARM_UP = (16, 64)


def main() -> None:
    """Measure, write the page; exit code 1 if a wanted figure was not reached."""
    options = _options()
    tree.adopt_orphans()
    around = environment()
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as directory:
            spoken, encoding_ms = _spoken(Path(directory), options)
            text = _text(Path(directory), options)
    except BenchError as error:
        sys.exit(f"stopped early: {error}")
    results = report.Results(spoken, text, encoding_ms)
    page = report.page(results, around)
    options.out.write_text(page)
    print(page)
    sys.exit(1 if report.missed(results) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds")
    parser.add_argument("--out", type=Path, default=Path("speech.md"), help="the page to write (default: speech.md)")
    options = parser.parse_args()
    options.rounds, options.seconds, options.waves = (1, 3, {16: 1}) if options.quick else (3, 6, {16: 16, 64: 8})
    return options


def _spoken(directory: Path, options: argparse.Namespace) -> tuple[dict[int, dict[str, list[Seen]]], dict[str, float]]:
    """What clients heard, by their number and by side; milliseconds of encoding by format."""
    deploy = directory / "voice.yaml"
    deploy.write_text(_VOICE)
    spoken: dict[int, dict[str, list[Seen]]] = {clients: {side: [] for side in report.SIDES} for clients in CLIENTS}
    with ExitStack() as stack:
        loop = stack.enter_context(Worker("bench.speech_loop", hello="ready"))
        load = stack.enter_context(Worker("bench.speech_load"))
        plain = stack.enter_context(running(variants.fastapi_voice(), directory))
        ours = stack.enter_context(running(variants.voice(deploy), directory))
        sides = {report.LOOP: (loop, 0), report.FASTAPI: (load, plain.port), report.OURS: (load, ours.port)}
        for number in range(-1, options.rounds):
            for clients, rounds in spoken.items():
                for turn in range(len(sides)):
                    side = report.SIDES[(number + turn) % len(sides)]
                    worker, port = sides[side]
                    seconds = options.seconds if number >= 0 else 1
                    asked = Load(clients, seconds, first=(number + 1) * 10_000, port=port)
                    seen = Seen.parse(worker.ask(asdict(asked)))
                    if number >= 0:
                        rounds[side].append(seen)
                        print(
                            f"round {number + 1}, {clients} clients, {side}: {len(seen.heard)} texts", file=sys.stderr
                        )
        return spoken, json.loads(loop.ask({"encode": True}))


def _text(directory: Path, options: argparse.Namespace) -> list[Level]:
    """Levels of streamed chats, of a server with one stage and of one with a voice behind it."""
    model = build(directory / "tiny")
    both = [variants.ours(1), variants.ours_that_speaks()]
    levels: list[Level] = []
    for number in range(options.rounds):
        for variant in both if number % 2 == 0 else reversed(both):
            with running(variant, model) as server:
                load = LoadGenerator()
                try:
                    for position, streams in enumerate(_WARM_UP):
                        measure(server, load, streams, 1, -1 - position)
                    for streams, waves in options.waves.items():
                        levels.append(measure(server, load, streams, waves, number))
                        print(f"  {levels[-1]}", file=sys.stderr)
                finally:
                    load.close()
    return levels


if __name__ == "__main__":
    main()
