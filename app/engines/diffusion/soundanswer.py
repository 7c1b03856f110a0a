"""The events of one request for sound: its steps, the file, what it took."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import Executor

from app.cluster.messages import Audio, Done, Progress
from app.engines.base import EngineError, Request
from app.engines.diffusion.batching import Outcome, Row, Sounded
from app.engines.diffusion.call import Call
from app.engines.diffusion.pixels import Pixels
from app.engines.diffusion.sound import Samples
from app.engines.soundusage import audio_tokens, sound_usage
from app.media.soundfile import SoundEncoder
from app.protocol.soundtask import SoundTask


class SoundAnswer:
    """Its listener's methods are called on the engine's threads."""

    def __init__(self, request: Request, task: SoundTask, call: Call, rate: int, encoders: Executor) -> None:
        """`rate`: that of the pipeline's sound in Hz."""
        self.rows = [Row(call, 0, self)]
        self.running = False
        self._request = request
        self._task = task
        self._rate = rate
        self._encoders = encoders
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Progress | Outcome] = asyncio.Queue()

    def abandon(self) -> None:
        for row in self.rows:
            row.cancelled = True

    # ------------------------------------------------------------------------------------------------ engine's threads

    def started(self, row: Row) -> None:
        self.running = True

    def stepped(self, row: Row, step: int, steps: int) -> None:
        if self._task.progress:  # otherwise the event loop is not woken: it would take turns with the pipeline
            self._tell(Progress(step, steps))

    def previewed(self, row: Row, number: int, picture: Pixels) -> None:
        """A sound has none."""

    def filmed(self, row: Row, frames: list[Pixels]) -> None:
        """A sound has none."""

    def finished(self, row: Row, outcome: Outcome) -> None:
        self._tell(outcome)

    def _tell(self, news: Progress | Outcome) -> None:
        self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    # ------------------------------------------------------------------------------------------------ event loop

    async def deliver(self) -> None:
        """Emit until the sound is there.

        Raises:
            EngineError: it could not be made.
        """
        while isinstance(news := await self._news.get(), Progress):
            self._request.emit(news)
        if isinstance(news, EngineError):
            raise news
        assert isinstance(news, Sounded), "a pipeline that makes sound makes nothing else"
        await self._request.ready()
        file = await self._loop.run_in_executor(self._encoders, _encode, news.samples, self._rate, self._task)
        self._request.emit(file)
        self._request.emit(sound_usage(news.prompt_tokens, audio_tokens(len(news.samples), self._rate)))
        self._request.emit(Done())


def _encode(samples: Samples, rate: int, task: SoundTask) -> Audio:
    count, channels = samples.shape
    encoder = SoundEncoder(task.format, rate, channels=channels, streamed=False, file_rate=task.sample_rate)
    data = encoder.push(samples) + encoder.finish()
    return Audio(
        index=0,
        data=memoryview(base64.b64encode(data) if task.base64 else data),
        format=task.format,
        sample_rate=encoder.sample_rate,
        samples=round(count * encoder.sample_rate / rate),
    )
