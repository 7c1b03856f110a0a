"""Files that were made for clients and wait to be fetched: one private directory for all API workers of a server.

A file's name is its only key, so it cannot be guessed. Its age is its modification time: any worker can tell whether it
has expired, and whichever comes first removes it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_-]{32}\.[a-z0-9]{2,5}", re.ASCII)
_SWEEP_S = 60.0


class GeneratedFiles:
    """At most `max_bytes` of files in `directory`, each for `lifetime_s` seconds; the oldest make room for new ones."""

    def __init__(self, directory: Path, lifetime_s: float, max_bytes: int) -> None:
        self._directory = directory
        self._lifetime_s = lifetime_s
        self._max_bytes = max_bytes

    async def save(self, content: bytes | memoryview, suffix: str) -> tuple[str, int]:
        """Keep `content`; its name, which ends in `suffix` ("png"), and the Unix time at which it expires.

        Raises:
            OSError: the disk is full, or the directory is gone.
        """
        return await asyncio.to_thread(self._save, content, suffix)

    async def read(self, name: str) -> tuple[bytes, int] | None:
        """The content of a file and the Unix time at which it expires; None when there is none of that name."""
        return await asyncio.to_thread(self._read, name) if _NAME.fullmatch(name) else None

    async def remove(self, name: str) -> None:
        """Remove a file before its time."""
        with suppress(FileNotFoundError):
            await asyncio.to_thread(os.unlink, self._directory / name)

    async def keep_swept(self) -> None:
        """Remove what has expired, again and again, until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._lifetime_s))
            await asyncio.to_thread(self.sweep)

    def sweep(self, room: int = 0) -> None:
        """Remove what has expired, and the oldest files until `room` more bytes fit."""
        files = sorted(self._listed())
        oldest = time.time() - self._lifetime_s
        total = room + sum(size for _, size, _ in files)
        for modified, size, path in files:
            if modified > oldest and total <= self._max_bytes:
                break
            total -= size
            with suppress(FileNotFoundError):  # another worker sweeps too
                os.unlink(path)

    def _listed(self) -> list[tuple[float, int, str]]:
        found = []
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.path))
        return found

    def _save(self, content: bytes | memoryview, suffix: str) -> tuple[str, int]:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.sweep(len(content))
        name = f"{secrets.token_urlsafe(24)}.{suffix}"
        handle, draft = tempfile.mkstemp(prefix=".", dir=self._directory)  # readable for this user alone
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(draft, self._directory / name)
        return name, int(time.time() + self._lifetime_s)

    def _read(self, name: str) -> tuple[bytes, int] | None:
        try:
            with open(self._directory / name, "rb") as file:
                expires = os.fstat(file.fileno()).st_mtime + self._lifetime_s
                return (file.read(), int(expires)) if expires > time.time() else None
        except FileNotFoundError:
            return None
