"""How fast /health answers while many streams run: `python -m bench.health_under_load`.

One connection is kept, as a load balancer's prober does, and one request a period is sent on it; the load is that of
bench.text_streaming. The wanted figure is a p99 below 50 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench import tree, variants
from bench.load import Wave
from bench.measure import LoadGenerator, load_average, percentile
from bench.model import build
from bench.prober import Prober
from bench.server import Server, running


def main() -> None:
    """Exit code 1: a probe failed."""
    options = _options()
    tree.adopt_orphans()
    print(f"{options.streams} streams, load average before {load_average():.2f}\n")
    print("| server | probes | p50 ms | p99 ms | longest ms | failed |\n|---|---|---|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory(prefix="bench") as directory:
        model = build(Path(directory) / "tiny")
        for variant in _variants(options.peer):
            with running(variant, model) as server:
                prober = _probe(server, options.streams, options.seconds)
            failed |= bool(prober.failures)
            print(_row(variant.name, prober), flush=True)
    sys.exit(1 if failed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="also `vllm serve`")
    parser.add_argument("--streams", type=int, default=256, help="streams at once (default: 256)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each server is loaded (default: 30)")
    return parser.parse_args()


def _variants(peer: bool) -> list[variants.Variant]:
    return [variants.ours(1), variants.ours(2), *([variants.peer(1, uni=True)] if peer else [])]


def _probe(server: Server, streams: int, seconds: float) -> Prober:
    """Waves of streams, one right after the other, for `seconds`, with a prober beside them."""
    load = LoadGenerator()
    try:
        load.run(Wave(server.port, streams, "warm-up"), _nothing)
        end = time.monotonic() + seconds
        with Prober(server.port) as prober:
            number = 0
            while time.monotonic() < end:
                load.run(Wave(server.port, streams, f"health {number}"), _nothing)
                number += 1
    finally:
        load.close()
    return prober


def _nothing() -> None:
    """Nobody measures around these waves."""


def _row(name: str, prober: Prober) -> str:
    times = [time_s * 1000 for time_s in prober.times_s]
    return (
        f"| {name} | {len(times)} | {percentile(times, 50):.1f} | {percentile(times, 99):.1f} | {max(times):.1f} "
        f"| {len(prober.failures)}{f': {prober.failures[0]}' if prober.failures else ''} |"
    )


if __name__ == "__main__":
    main()
