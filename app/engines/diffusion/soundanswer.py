"""The events of one request for sound: its steps, the file, what it took."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import Executor

from app.cluster.messages import Audio, Done, Progress
from app.engines.base import EngineError, Request
from app.engines.diffusion.batching import Sounded
from app.engines.diffusion.call import Call
from app.engines.diffusion.onerow import OneRow
from app.engines.diffusion.sound import Samples
from app.engines.soundusage import audio_tokens, sound_usage
from app.media.soundfile import SoundEncoder
from app.protocol.soundtask import SoundTask


class SoundAnswer(OneRow):
    """One file, when the sound is made."""

    def __init__(self, request: Request, task: SoundTask, call: Call, rate: int, encoders: Executor) -> None:
        """`rate`: that of the pipeline's sound in Hz."""
        super().__init__(call, progress=task.progress)
        self._request = request
        self._task = task
        self._rate = rate
        self._encoders = encoders

    async def deliver(self) -> None:
        """Emit until the sound is there.

        Raises:
            EngineError: it could not be made.
        """
        while isinstance(news := await self.news.get(), Progress):
            self._request.emit(news)
        if isinstance(news, EngineError):
            raise news
        assert isinstance(news, Sounded), "a pipeline that makes sound makes nothing else"
        await self._request.ready()
        loop = asyncio.get_running_loop()
        file = await loop.run_in_executor(self._encoders, _encode, news.samples, self._rate, self._task)
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
