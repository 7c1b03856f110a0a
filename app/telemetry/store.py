"""Numbers that all API workers of one server share: each worker has a memory-mapped file of its own in one directory.

A file outlives its worker, so nothing counted is lost when one is killed; a worker that starts takes over a file that
nobody holds before it makes one, so there are never more files than workers at a time. A write is one store into
mapped memory: no lock, no system call. Any worker can read all files, also while another one is stopped or dead.

The file is an array of float64 cells: cell 0 counts the cells in use; then records follow, each of them the length of
its key in bytes, the number of its values, the key padded to whole cells, the values.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from pathlib import Path

from app.cluster.locks import Lock, is_locked

logger = logging.getLogger("app.telemetry")

CELLS = 1 << 15
"""Capacity of a file; one cell is eight bytes, and pages that are not used take no memory."""
SCRATCH_CELLS = 64
"""The end of the file: where a series that no longer fits writes to without being read."""
_CELL = 8


class Store:
    """The cells that this process writes. Without a directory they are its own and end with it.

    `cells` is what series are added up in; `allocate` tells where.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._lock: Lock | None = None
        size = CELLS * _CELL
        if directory is None:
            self._map = mmap.mmap(-1, size)
        else:
            self._lock, path = _free_file(directory)
            with path.open("r+b") as file:
                file.truncate(size)
                self._map = mmap.mmap(file.fileno(), size)
        self._bytes = memoryview(self._map)
        self.cells = self._bytes.cast("d")
        self.cells[0] = max(self.cells[0], 1.0)
        self._places = {key: (start, count) for key, start, count in _records(self._bytes)}
        self._full = False

    def allocate(self, key: bytes, count: int) -> int:
        """Index of the first of `count` cells of the series `key`; what a predecessor has counted there stays."""
        start, known = self._places.get(key, (0, 0))
        if known != count:
            start = self._append(key, count)
            self._places[key] = start, count
        return start

    def values(self) -> Iterator[tuple[bytes, list[float]]]:
        """All series of this process."""
        for key, start, count in _records(self._bytes):
            yield key, list(self.cells[start : start + count])

    def close(self) -> None:
        """Leave the file to the next worker. Late writes still go there and hurt nobody."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _append(self, key: bytes, count: int) -> int:
        begin = int(self.cells[0])
        start = begin + 2 + _padded(len(key))
        if start + count > CELLS - SCRATCH_CELLS:
            self._report_full()
            return CELLS - SCRATCH_CELLS
        self.cells[begin], self.cells[begin + 1] = len(key), count
        self._bytes[(begin + 2) * _CELL : (begin + 2) * _CELL + len(key)] = key
        self.cells[0] = start + count  # last: who reads meanwhile sees whole records only
        return start

    def _report_full(self) -> None:
        if not self._full:
            self._full = True
            logger.error("there is no room for more metrics than %d cells; further series are not counted", CELLS)


def read_all(directory: Path) -> Iterator[tuple[bool, bytes, list[float]]]:
    """Every series of every file: whether its writer lives, its key, its values."""
    for path in sorted(directory.glob(_name("*"))):
        alive = is_locked(path)
        content = memoryview(path.read_bytes())
        content = content[: len(content) // _CELL * _CELL]
        cells = content.cast("d")
        for key, start, count in _records(content):
            yield alive, key, list(cells[start : start + count])


def _records(content: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Key, first cell and number of cells of each record."""
    cells = content.cast("d")
    at, end = 1, int(cells[0]) if len(cells) else 0
    while at < end:
        length, count = int(cells[at]), int(cells[at + 1])
        start = at + 2 + _padded(length)
        yield bytes(content[(at + 2) * _CELL : (at + 2) * _CELL + length]), start, count
        at = start + count


def _padded(length: int) -> int:
    return -(-length // _CELL)


def _free_file(directory: Path) -> tuple[Lock, Path]:
    number = 0
    while True:
        path = directory / _name(str(number))
        lock = Lock(path)
        if lock.try_exclusive():
            return lock, path
        lock.close()
        number += 1


def _name(number: str) -> str:
    return f"metrics-{number}"
