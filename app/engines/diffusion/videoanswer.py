"""The events of one request for a video: its steps, the file, as a whole or in pieces, what it took."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from app.cluster.messages import Done, Failed, Progress, Usage, Video
from app.engines.base import EngineError, Request
from app.engines.diffusion.batching import Drawn
from app.engines.diffusion.call import Call
from app.engines.diffusion.onerow import OneRow
from app.engines.diffusion.pixels import Pixels
from app.media.videofile import VideoFile
from app.protocol.videotask import VideoTask


class VideoAnswer(OneRow):
    """Pieces of the video come as they are decoded, if they are wanted so, and at last all of it."""

    def __init__(self, request: Request, task: VideoTask, call: Call, encoders: Executor, *, borrowed: bool) -> None:
        """`borrowed`: frames are encoded where they lie."""
        super().__init__(call, progress=task.progress)
        self._request = request
        self._fps = call.fps
        self._encoders = encoders
        self._file = VideoFile(call.fps, fragmented=task.streamed, borrowed=borrowed)
        self._size = (0, 0)
        self._sent = 0

    async def deliver(self) -> None:
        """Emit until the video is there.

        Raises:
            EngineError: it could not be made.
        """
        try:
            while not isinstance(news := await self.news.get(), Drawn):
                if isinstance(news, Progress):
                    self._request.emit(news)
                elif isinstance(news, list):
                    await self._write(news, last=False)
                else:
                    assert isinstance(news, EngineError), "a pipeline that makes videos makes no sound here"
                    raise news
            if self._sent > len(news.pictures):
                raise EngineError(Failed(500, f"{self._sent} frames were decoded for {len(news.pictures)}"))
            await self._write(news.pictures[self._sent :], last=True)
        except OSError as error:
            told = f"the video cannot be written on the replica's disk: {error.strerror or error}"
            raise EngineError(Failed(503, told, "service_unavailable_error", code="disk_error")) from error
        finally:
            await asyncio.to_thread(self._file.close)
        self._request.emit(Usage(news.prompt_tokens, 0))
        self._request.emit(Done())

    async def _write(self, frames: list[Pixels], *, last: bool) -> None:
        await self._request.ready()
        data = await asyncio.get_running_loop().run_in_executor(self._encoders, self._encode, frames, last)
        self._sent += len(frames)
        if frames:
            height, width = frames[0].shape[:2]
            self._size = width, height
        width, height = self._size
        self._request.emit(
            Video(
                data=memoryview(data),
                width=width,
                height=height,
                frames=len(frames),
                fps=self._fps,
                seed=self.rows[0].seed,
            )
        )

    def _encode(self, frames: list[Pixels], last: bool) -> bytes:
        data = self._file.push(frames)
        return data + self._file.finish() if last else data
