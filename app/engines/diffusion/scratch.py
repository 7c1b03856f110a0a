"""Directories that a process makes for itself: what a killed one has left is removed when the next one is made."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.cluster.locks import Lock, is_locked

_LOCK = ".lock"
_held: list[Lock] = []


def own_directory(prefix: str, parent: Path) -> Path:
    """A fresh directory in `parent`, whose name begins with `prefix`; it counts as in use while this process lives.

    Raises:
        OSError: it cannot be made.
    """
    path, lock = _make(prefix, parent)
    _held.append(lock)
    return path


@contextmanager
def passing_directory(prefix: str) -> Iterator[Path]:
    """A fresh directory among the temporary files, for the length of the block.

    Raises:
        OSError: it cannot be made.
    """
    path, lock = _make(prefix, Path(tempfile.gettempdir()))
    try:
        yield path
    finally:
        shutil.rmtree(path)
        lock.close()


def _make(prefix: str, parent: Path) -> tuple[Path, Lock]:
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{prefix}*-*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        # Who shares the disk from another pid namespace has no such pid here, but holds the lock.
        if pid.isdecimal() and not Path("/proc", pid).exists() and not is_locked(left / _LOCK):
            shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    lock = Lock(path / _LOCK)
    lock.try_exclusive()
    return path, lock
