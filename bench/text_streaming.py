"""Streamed chat with `vllm serve` and with omni-app, on the same machine, in one run: `python -m bench.text_streaming`.

One server runs at a time: it is started, warmed up, takes all levels of load and is stopped; then comes the next. A
round goes through all servers, every second round backwards, and figures are medians over the rounds, so that neither
side profits from a quiet minute. Each level sends waves of simultaneous requests with prompts that no earlier wave had.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench import report, tree, variants
from bench.measure import Level, LoadGenerator, api_memory, load_average, measure
from bench.model import build
from bench.server import BenchError, running

WAVES = {1: 16, 16: 6, 64: 4, 256: 2}
"""Streams at once -> waves of a round."""
_QUICK = {1: 4, 16: 1, 64: 1}
_WARM_UP = (16, 64, 64)


def main() -> None:
    """Exit code 1: a server merged or split tokens, or could not be measured."""
    options = _options()
    tree.adopt_orphans()
    around = report.environment()
    levels: list[Level] = []
    starts: list[report.Start] = []
    failed = False
    try:
        _rounds(options, levels, starts)
    except BenchError as error:
        print(f"stopped early: {error}", file=sys.stderr)
        failed = True
    finally:
        _write(options.out, levels, starts, around)
    sys.exit(1 if failed or report.merged(levels) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of two servers and little load")
    parser.add_argument("--peer", choices=["both", "none", "only"], default="both", help="none: omni-app alone")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5, or 1 with --quick)")
    parser.add_argument("--streams", type=int, nargs="+", help=f"levels of load (default: {' '.join(map(str, WAVES))})")
    parser.add_argument("--out", type=Path, default=Path("text_streaming.json"), help="JSON file; .md is put beside it")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.waves = {x: WAVES.get(x, 2) for x in options.streams} if options.streams else WAVES
    if options.quick and not options.streams:
        options.waves = _QUICK
    if options.peer != "none" and not variants.has_peer():
        parser.error("there is no `vllm` beside this Python; use --peer none")
    return options


def _rounds(options: argparse.Namespace, levels: list[Level], starts: list[report.Start]) -> None:
    chosen = variants.chosen(options.peer, quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="bench") as directory:
        model = build(Path(directory) / "tiny")
        for number in range(options.rounds):
            for variant in chosen if number % 2 == 0 else reversed(chosen):
                _one_server(variant, model, number, options.waves, levels, starts)


def _one_server(
    variant: variants.Variant,
    model: Path,
    number: int,
    waves: dict[int, int],
    levels: list[Level],
    starts: list[report.Start],
) -> None:
    with running(variant, model) as server:
        start = report.Start(variant.name, variant.side, server.ready_s)
        starts.append(start)
        print(f"round {number + 1}, {variant.name}: ready after {server.ready_s:.2f} s", file=sys.stderr)
        if variant.starts_only:
            return
        load = LoadGenerator()
        try:
            for position, streams in enumerate(_WARM_UP):
                measure(server, load, streams, 1, -1 - position)
            for streams, count in waves.items():
                levels.append(measure(server, load, streams, count, number))
                print(f"  {levels[-1]}", file=sys.stderr)
            start.api_rss_mb = api_memory(server)
        finally:
            load.close()


def _write(out: Path, levels: list[Level], starts: list[report.Start], around: dict[str, object]) -> None:
    data = {
        "environment": around,
        "load_average_after": load_average(),
        "starts": [asdict(start) for start in starts],
        "levels": [asdict(level) for level in levels],
    }
    out.write_text(json.dumps(data, indent=1) + "\n")
    if levels:
        text = report.table(levels, starts, around)
        text += "".join(f"\nNot one chunk per token: {line}" for line in report.merged(levels))
        out.with_suffix(".md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
