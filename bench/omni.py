"""Omni models: how soon they are heard and how many at once, in one run: `python -m bench.omni`.

The same weights answer the same conversations on two sides: transformers' generate in a Python process, and omni-app
with its three stages, over HTTP. They take turns, load by load, so that a busy minute of the machine hits both. Both
have all cores: transformers by its threads, the stages one thread each.

Writes a page of results (--out) that says what was wanted, and exits with 1 if something was not reached.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from app.settings.weights import read_weights
from bench import omni_report as report
from bench import tree, variants
from bench.omni_loop import Load, Seen
from bench.omni_model import build
from bench.report import environment
from bench.server import BenchError, running
from bench.worker import Worker

CLIENTS = (1, 8)


def main() -> None:
    """Measure, write the page; exit code 1 if a wanted figure was not reached."""
    options = _options()
    tree.adopt_orphans()
    around = environment()
    threads = len(os.sched_getaffinity(0))
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as directory:
            model = build(Path(directory) / "model")
            weights = read_weights(model)
            assert weights is not None
            results = report.Results(_measured(model, threads, options), weights.parameters, threads)
    except BenchError as error:
        sys.exit(f"stopped early: {error}")
    page = report.page(results, around)
    options.out.write_text(page)
    print(page)
    sys.exit(1 if report.missed(results) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, few answers")
    parser.add_argument("--out", type=Path, default=Path("omni.md"), help="the page to write (default: omni.md)")
    options = parser.parse_args()
    options.rounds, options.turns = (1, {1: 2, 8: 1}) if options.quick else (3, {1: 4, 8: 2})
    return options


def _measured(model: Path, threads: int, options: argparse.Namespace) -> dict[int, dict[str, list[Seen]]]:
    """What clients saw, by their number and by side."""
    seen: dict[int, dict[str, list[Seen]]] = {clients: {side: [] for side in report.SIDES} for clients in CLIENTS}
    with ExitStack() as stack:
        loop = stack.enter_context(Worker("bench.omni_loop", str(model), str(threads), hello="ready"))
        load = stack.enter_context(Worker("bench.omni_load"))
        ours = stack.enter_context(running(variants.omni(), model))
        sides = {report.REFERENCE: (loop, 0), report.OURS: (load, ours.port)}
        for number in range(-1, options.rounds):
            for clients, rounds in seen.items():
                for turn in range(len(sides)):
                    side = report.SIDES[(number + turn) % len(sides)]
                    worker, port = sides[side]
                    if number < 0 and clients > 1 and side == report.REFERENCE:
                        continue  # it is warm after one
                    turns = options.turns[clients] if number >= 0 else 1
                    asked = Load(clients, turns, first=(number + 1) * 1000 + clients * 100, port=port)
                    found = Seen.parse(worker.ask(asdict(asked)))
                    if number >= 0:
                        rounds[side].append(found)
                        print(f"round {number + 1}, {clients} clients, {side}: {found.wall_s:.1f} s", file=sys.stderr)
    return seen


if __name__ == "__main__":
    main()
