"""File locks that the kernel drops with their process, however it dies. Standard library only."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

_TURN_S = 0.02
"""How often somebody who waits for their turn looks whether it has come."""


class Lock:
    """An flock on a file. Never blocks; closing it, or the death of the process, releases it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = open(path, "a")  # noqa: SIM115 - held for the life of the lock

    def try_exclusive(self) -> bool:
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        return self._try(fcntl.LOCK_SH)

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()

    def is_at(self, path: Path) -> bool:
        """Whether the locked file still is the one at `path` (the directory may have been removed meanwhile)."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


@asynccontextmanager
async def turn(path: Path) -> AsyncGenerator[None, None]:
    """Alone among all processes, and all tasks, that wait for the lock at `path`."""
    lock = Lock(path)
    try:
        while not lock.try_exclusive():  # noqa: ASYNC110 - it is held by other processes
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        lock.close()


def is_locked(path: Path) -> bool:
    """Whether another process holds an exclusive lock on the file; a missing file is not locked."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
