"""What an API worker counts, and the sum of it over all workers of the server.

Not prometheus_client: its multi-process mode is switched on by a variable for the whole process, which a host that
mounts us may share; it keeps the files of every worker that ever lived, and an observation costs ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import msgspec

from app.telemetry import families as f
from app.telemetry.families import Family
from app.telemetry.store import Store, read_all

Labels = tuple[str, ...]
Samples = dict[Family, dict[Labels, list[float]]]
"""Values by family and label values: one number, or for a histogram the count of each bucket and the sum at the end."""

_COUNTED = {family.name: family for family in f.COUNTED}


class Value:
    """One counter or gauge."""

    __slots__ = ("_at", "_cells")

    def __init__(self, cells: memoryview[float], at: int) -> None:
        self._cells = cells
        self._at = at

    def add(self, amount: float = 1.0) -> None:
        self._cells[self._at] += amount


class Histogram:
    """One histogram."""

    __slots__ = ("_at", "_buckets", "_cells", "_sum")

    def __init__(self, cells: memoryview[float], at: int, buckets: tuple[float, ...]) -> None:
        self._cells = cells
        self._at = at
        self._sum = at + len(buckets) + 1
        self._buckets = buckets

    def observe(self, value: float) -> None:
        """Count one value."""
        self._cells[self._at + bisect_left(self._buckets, value)] += 1
        self._cells[self._sum] += value

    def add(self, counts: list[int], total: float) -> None:
        """Count many: how many fell into each bucket (the last one has no bound), and the sum of their values."""
        for bucket, count in enumerate(counts):
            if count:
                self._cells[self._at + bucket] += count
        self._cells[self._sum] += total


class Metrics:
    """The metrics of one application in one API worker; those of its siblings lie in the same `directory`.

    Without a directory (before the worker has joined its server, or in a test) it counts for itself.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._store = Store(directory)
        self._values: dict[tuple[str, ...], Value] = {}
        self._histograms: dict[tuple[str, ...], Histogram] = {}
        self._settle_losses()

    def value(self, family: Family, *labels: str) -> Value:
        """The counter or gauge of `family` with these label values."""
        key = (family.name, *labels)
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = Value(self._store.cells, self._allocate(key, family))
        return found

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """The histogram of `family` with these label values."""
        key = (family.name, *labels)
        found = self._histograms.get(key)
        if found is None:
            at = self._allocate(key, family)
            found = self._histograms[key] = Histogram(self._store.cells, at, family.buckets)
        return found

    def observe_http(self, route: str, method: str, status: int, seconds: float) -> None:
        """One ended HTTP request; `route` is a template, status 0 means that none was sent."""
        method = method if method in _METHODS else "other"
        self.value(f.HTTP_REQUESTS, route, method, f"{status // 100}xx" if status else "none").add()
        self.histogram(f.HTTP_DURATION, route, method).observe(seconds)

    def collect(self) -> Samples:
        """The sum over all workers; gauges of workers that have died are left out. Reads files."""
        samples: Samples = {family: {} for family in f.COUNTED}
        for alive, key, values in self._series():
            name, *labels = _decode(key)
            family = _COUNTED.get(name)
            if family is None or family.cells != len(values) or (family.kind == "gauge" and not alive):
                continue
            series = samples[family]
            known = series.get(tuple(labels))
            series[tuple(labels)] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]
        return samples

    def close(self) -> None:
        """The worker leaves its server. What it has counted stays."""
        self._store.close()

    def _allocate(self, key: tuple[str, ...], family: Family) -> int:
        return self._store.allocate(msgspec.json.encode(key), family.cells)

    def _series(self) -> Iterable[tuple[bool, bytes, list[float]]]:
        if self._directory is None:
            return ((True, key, values) for key, values in self._store.values())
        return read_all(self._directory)

    def _settle_losses(self) -> None:
        """Gauges that a predecessor has left are requests that died with it."""
        for key, values in list(self._store.values()):
            name, *labels = _decode(key)
            if values[0] and name in (f.REQUESTS_RUNNING.name, f.REQUESTS_WAITING.name):
                self.value(_COUNTED[name], *labels).add(-values[0])
                self.value(f.REQUESTS_ENDED, *labels, "worker_lost").add(values[0])


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_decode = msgspec.json.Decoder(list[str]).decode
