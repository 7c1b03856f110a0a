"""Voices that clients have uploaded: one database for all API workers of a server, and of its later runs.

Nothing is cached, so what one worker has done every other one sees at once. SQLAlchemy is imported with the first use.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from app.settings.schema import SpeechConfig

if TYPE_CHECKING:
    from app.store.voicetable import VoiceTable

T = TypeVar("T")

_PATIENCE_S = 15.0
"""How long a request waits for the database."""
_THREADS = 4
"""Of their own: a database that hangs must not take those that files are read and bodies are decoded on."""


class VoicesMissingError(Exception):
    """SQLAlchemy is not installed."""


class VoicesUnavailableError(Exception):
    """The database cannot be used; the message is for who runs the server."""


class VoiceExistsError(Exception):
    """There is a voice of that name, and voices are not replaced here."""


class VoicesFullError(Exception):
    """No more fits; the message names the limit."""


class VoiceRecord(msgspec.Struct, kw_only=True):
    """One voice: a recording (`sample`, the bytes of a file of `size` bytes) or an embedding.

    `created_at` is Unix time, `text` what is said in the recording. A record of a list has no `sample`.
    """

    name: str
    consent: str
    created_at: int
    mime_type: str = ""
    size: int = 0
    text: str = ""
    description: str = ""
    sample: bytes = b""
    embedding: list[float] = []


class Voices:
    """The voices of one server. All methods raise VoicesMissingError and VoicesUnavailableError."""

    def __init__(self, config: SpeechConfig) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(_THREADS, "voices")
        self._lock = threading.Lock()
        self._opened: VoiceTable | None = None

    async def save(self, record: VoiceRecord) -> None:
        """Keep a voice. One of its name is replaced, or stays as it was where this raises.

        Raises:
            VoiceExistsError: there is one of its name, and the policy is "immutable".
            VoicesFullError: the limits are reached.
        """
        await self._in_thread(lambda: self._save(record))

    async def get(self, name: str) -> VoiceRecord | None:
        """The voice of that name in whatever case, with its recording; None if there is none."""
        return await self._in_thread(lambda: self._table().get(name))

    async def list(self) -> list[VoiceRecord]:
        """All voices by name, without their recordings."""
        return await self._in_thread(lambda: self._table().all())

    async def delete(self, name: str) -> bool:
        """Forget a voice; whether there was one."""
        return await self._in_thread(lambda: self._table().delete(name))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise VoicesUnavailableError(f"it has not answered for {_PATIENCE_S:g} s") from None

    def _save(self, record: VoiceRecord) -> None:
        config = self._config
        replace = config.voices_policy == "overwrite"
        self._table().save(record, limit=config.voices_max, max_bytes=config.voices_max_bytes, replace=replace)

    def _table(self) -> VoiceTable:
        with self._lock:
            if self._opened is None:
                try:
                    from app.store.voicetable import VoiceTable
                except ModuleNotFoundError as error:
                    raise VoicesMissingError from error
                self._opened = VoiceTable(self._config.voices_database or f"sqlite:///{default_file()}")
            return self._opened


def default_file() -> Path:
    """Where voices are kept unless a database is named: one file of this user, for all servers."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return root / "omni-app" / "voices.sqlite3"
