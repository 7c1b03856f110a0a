"""Videos that are being made, and those that wait to be fetched: one private directory for all API workers of a server.

Each has a directory of its own, so that who makes it sees at its next step that somebody has deleted it. A lock in it
tells the others whether its maker still lives: the kernel drops that with the process.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from app.cluster.locks import Lock, is_locked
from app.protocol.videos import Video, VideoError
from app.store.generated import GeneratedFiles

_ID = re.compile(r"video_[0-9a-f]{32}", re.ASCII)
_RECORD = "record.json"
_MAKER = "maker"
_GLANCE_S = 0.5
"""How often a maker looks whether its video is still wanted."""


class VideoRecord(msgspec.Struct):
    """`owner` may see it: a digest of an API key, "" on servers without keys. `file`: its name, "" before there is one.

    `forgotten_at`: Unix time after which nobody can ask for it any more, 0 while it is made.
    """

    owner: str
    video: Video
    file: str = ""
    forgotten_at: int = 0


_decode = msgspec.json.Decoder(VideoRecord).decode


class Making:
    """One video while it is made, by the process that holds this. Close it at last."""

    def __init__(self, directory: Path, record: VideoRecord) -> None:
        """Raises OSError: the disk is full, or its parent is gone."""
        draft = directory.with_name(f".{directory.name}")
        draft.mkdir(mode=0o700, parents=True)
        self.record = record
        self._lock = Lock(draft / _MAKER)
        self._lock.try_exclusive()  # before others can see it, and look
        self._directory = draft
        self._write()
        self._directory = draft.rename(directory)

    async def save(self) -> None:
        """Let others see the record as it is now.

        Raises:
            FileNotFoundError: the video has been deleted.
        """
        await asyncio.to_thread(self._write)

    async def deleted(self) -> None:
        """Return once somebody has deleted it."""
        while self._directory.exists():  # noqa: ASYNC110 - other processes delete it
            await asyncio.sleep(_GLANCE_S)

    def close(self) -> None:
        """What is not finished by now has failed."""
        self._lock.close()

    def _write(self) -> None:
        draft = self._directory / f".{_RECORD}"
        draft.write_bytes(msgspec.json.encode(self.record))
        os.replace(draft, self._directory / _RECORD)


class Videos:
    """The videos of a server. Their files are kept among `generated`, as long as these are; their records as long."""

    def __init__(self, directory: Path, generated: GeneratedFiles, lifetime_s: float) -> None:
        self._directory = directory
        self._generated = generated
        self._lifetime_s = lifetime_s

    async def begin(self, owner: str, video: Video) -> Making:
        """Let others see that `video` is going to be made; it gets its id."""
        return await asyncio.to_thread(self._begin, owner, video)

    async def finish(self, making: Making, content: bytes) -> None:
        """Keep the file of a video that has been made.

        Raises:
            FileNotFoundError: the video has been deleted.
            OSError: the disk is full.
        """
        name, expires = await self._generated.save(content, "mp4")
        video, record = making.record.video, making.record
        record.file, record.forgotten_at = name, expires
        video.status, video.progress = "completed", 100
        video.completed_at, video.expires_at = int(time.time()), expires
        try:
            await making.save()
        except OSError:
            record.file = ""
            await self._generated.remove(name)
            raise

    async def fail(self, making: Making, error: VideoError) -> None:
        """Keep why a video has not been made.

        Raises:
            FileNotFoundError: it has been deleted.
        """
        video = making.record.video
        video.status, video.error = "failed", error
        making.record.forgotten_at = int(time.time() + self._lifetime_s)
        await making.save()

    async def get(self, owner: str, video_id: str) -> VideoRecord | None:
        """A video of that owner; None if there is none, or none any more."""
        record = await asyncio.to_thread(self._read, self._directory / video_id) if _ID.fullmatch(video_id) else None
        return record if record is not None and record.owner == owner else None

    async def listed(self, owner: str) -> list[Video]:
        """All videos of that owner, the oldest first."""
        return await asyncio.to_thread(self._list, owner)

    async def delete(self, record: VideoRecord) -> None:
        """Forget a video, and stop making it."""
        file = await asyncio.to_thread(self._remove, self._directory / record.video.id) or record.file
        if file:
            await self._generated.remove(file)

    def _begin(self, owner: str, video: Video) -> Making:
        self._sweep()
        video.id = f"video_{secrets.token_hex(16)}"
        try:
            return Making(self._directory / video.id, VideoRecord(owner, video))
        except OSError:
            self._remove(self._directory / video.id)
            raise

    def _list(self, owner: str) -> list[Video]:
        records = (self._read(path) for path in self._paths())
        found = [record.video for record in records if record is not None and record.owner == owner]
        return sorted(found, key=lambda video: (video.created_at, video.id))

    def _paths(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [Path(entry) for entry in os.scandir(self._directory) if _ID.fullmatch(entry.name)]
        return []

    def _read(self, directory: Path) -> VideoRecord | None:
        alive = is_locked(directory / _MAKER)  # first: it may finish in between
        try:
            record = _decode((directory / _RECORD).read_bytes())
        except FileNotFoundError:
            return None
        if record.forgotten_at:
            return record if record.forgotten_at > time.time() else None
        if not alive:
            record.video.status = "failed"
            record.video.error = VideoError("server_error", "the process that made this video has ended")
        return record

    def _sweep(self) -> None:
        """Remove what can be asked for no more, and what nobody has made to the end for as long."""
        for path in self._paths():
            with suppress(FileNotFoundError):
                old = (path / _RECORD).stat().st_mtime < time.time() - self._lifetime_s
                if old and not is_locked(path / _MAKER):
                    self._remove(path)

    def _remove(self, directory: Path) -> str:
        """The name of its file at the last moment: it may have been finished since somebody looked."""
        gone = directory.with_name(f".{directory.name}")  # at once, whatever its maker is writing into it
        with suppress(FileNotFoundError):
            directory.rename(gone)
        file = ""
        with suppress(OSError, msgspec.DecodeError):
            file = _decode((gone / _RECORD).read_bytes()).file
        shutil.rmtree(gone, ignore_errors=True)
        return file
