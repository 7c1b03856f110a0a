"""Videos that an API worker makes while nobody waits for the response: their tasks, and what is told of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from app.cluster.messages import QUEUE_FULL, REPLICA_LEAVES, REPLICA_LOST, Progress
from app.cluster.messages import Video as Piece
from app.pipeline.graph import NO_REPLICA
from app.protocol.errors import ApiError
from app.protocol.videos import Video, VideoError
from app.routes.errors import internal_error, shutting_down
from app.routes.interrupt import Interrupt
from app.store.videos import Making, Videos

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

logger = logging.getLogger("app.routes")

_TELL_S = 0.5
"""How often the progress of a video is written down at most."""

_LAST_WORDS_S = 5.0
"""What videos have to end themselves once the server has no more time."""
_PASSING = (NO_REPLICA, QUEUE_FULL, REPLICA_LEAVES, REPLICA_LOST)


class _DeletedError(Exception):
    """Nobody wants the video any more."""


class VideoWork:
    """The videos that this worker makes now."""

    def __init__(self, draining: asyncio.Event) -> None:
        self._draining = draining
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, videos: Videos, making: Making, first: AnswerStream, again: Callable[[], Awaitable[AnswerStream]]
    ) -> None:
        """Make a video of the answer `first`, or, where its replica dies, of what `again` submits."""
        task = asyncio.create_task(self._make(videos, making, first, again), name=making.record.video.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for all of them, until `draining` ends them: other workers may go on, and tell of what is ready."""
        drained = Interrupt(self._draining.wait())
        try:
            with drained.raising(shutting_down()):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except ApiError:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        finally:
            await drained.close()
            for task in self._tasks:
                task.cancel()

    async def _make(
        self, videos: Videos, making: Making, answer: AnswerStream, again: Callable[[], Awaitable[AnswerStream]]
    ) -> None:
        try:
            async with self._interrupts(making) as (deleted, drain):
                with deleted.raising(_DeletedError()), drain.raising(shutting_down()):
                    content = await self._content(making, answer, again)
                await videos.finish(making, content)  # to its end: a file that nobody knows of would stay
        except (_DeletedError, FileNotFoundError):
            logger.info("video %s is not wanted any more", making.record.video.id)
        except ApiError as error:
            await _fail(videos, making, error)
        except Exception:
            logger.exception("video %s failed", making.record.video.id)
            await _fail(videos, making, internal_error(making.record.video.id))
        finally:
            making.close()

    @asynccontextmanager
    async def _interrupts(self, making: Making) -> AsyncIterator[tuple[Interrupt, Interrupt]]:
        deleted, drain = Interrupt(making.deleted()), Interrupt(self._draining.wait())
        try:
            yield deleted, drain
        finally:
            await deleted.close()
            await drain.close()

    async def _content(
        self, making: Making, answer: AnswerStream, again: Callable[[], Awaitable[AnswerStream]]
    ) -> bytes:
        """The file. Nobody has seen anything of it yet, so it is made once more where its replica dies amid it."""
        try:
            return await self._collected(making, answer)
        except ApiError as error:
            if not passes(error):
                raise
        making.record.video.status, making.record.video.progress = "queued", 0
        await making.save()
        try:
            return await self._collected(making, await again())
        except ApiError as error:
            if not passes(error):
                raise
            message = f"Each of the two replicas that made this video was lost, the second with: {error}"
            raise ApiError(503, message, code=REPLICA_LOST) from None

    async def _collected(self, making: Making, answer: AnswerStream) -> bytes:
        try:
            return await _collect(making, answer)
        finally:
            await answer.aclose("shutdown" if self._draining.is_set() else "client_disconnect")


async def _collect(making: Making, answer: AnswerStream) -> bytes:
    video, told, pieces, frames = making.record.video, 0.0, [], 0
    video.progress = 0  # also where it is made once more
    async for events in answer:
        for event in events:
            if isinstance(event, Progress):
                video.status, video.progress = "in_progress", min(99, 100 * event.step // max(event.steps, 1))
            elif isinstance(event, Piece):
                pieces.append(bytes(event.data))
                frames += event.frames
                describe(video, event, frames)
        if (now := time.monotonic()) - told >= _TELL_S:
            told = now
            await making.save()
    if not pieces:
        raise no_video()
    return b"".join(pieces)


def no_video() -> ApiError:
    """500: the model ended without one."""
    return ApiError(500, "The model made no video of this.", code="no_video")


def passes(error: ApiError) -> bool:
    """Whether a replica was lost, or none has room: soon that may be otherwise."""
    return error.body.error.code in _PASSING


def describe(video: Video, made: Piece, frames: int) -> None:
    """Write down what a video is, of the event that carries the last of its `frames`."""
    video.size, video.fps, video.seed = f"{made.width}x{made.height}", made.fps, made.seed
    video.num_frames = frames
    video.seconds = f"{video.num_frames / made.fps:g}"


async def _fail(videos: Videos, making: Making, error: ApiError) -> None:
    told = error.body.error
    try:
        await videos.fail(making, VideoError(told.code or told.type, told.message))
    except OSError as problem:  # it has been deleted meanwhile, or the server's directory is gone
        logger.warning("video %s failed: %s (%s)", making.record.video.id, told.message, problem)
