"""How fast /health answers while many streams run: `python -m bench.health_under_load`.

One connection is kept, as a load balancer's prober does, and one request a period is sent on it; the load is that of
bench.text_streaming. The wanted figure is a p99 below 50 ms.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench import tree, variants
from bench.load import Wave
from bench.measure import LoadGenerator, load_average, percentile
from bench.model import build
from bench.server import Server, running

_PERIOD_S = 0.02


class Prober:
    """Asks for /health all the time in a thread of its own, between `with` and its end."""

    def __init__(self, port: int, period_s: float = _PERIOD_S) -> None:
        self.times_s: list[float] = []
        self.failures: list[str] = []
        self._port = port
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        while not self._stop.wait(self._period_s):
            begin = time.perf_counter()
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            self.times_s.append(time.perf_counter() - begin)
            if answer.status != 200:
                self.failures.append(f"status {answer.status}")


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
