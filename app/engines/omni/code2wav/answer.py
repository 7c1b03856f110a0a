"""One request of a vocoder stage: codec frames come in, pieces of one sound file go out."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from app.cluster.messages import INPUT_TIMEOUT, Done, Failed
from app.cluster.tensors import Tensor
from app.engines.base import EngineError, Request
from app.engines.omni.code2wav.batches import Batches
from app.engines.omni.code2wav.family import Codes, Decoding, Vocoder
from app.engines.soundpieces import SoundPieces
from app.engines.soundusage import audio_tokens, sound_usage
from app.protocol.speechtask import SpeechTask


class Answer:
    """The events of one request."""

    def __init__(
        self,
        request: Request,
        task: SpeechTask,
        decoding: Decoding,
        vocoder: Vocoder[Any],
        batches: Batches,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long to wait for further frames."""
        self._request = request
        self._task = task
        self._decoding = decoding
        self._vocoder = vocoder
        self._batches = batches
        self._patience_s = patience_s
        self._rate = vocoder.card.sample_rate
        self._sound = SoundPieces(request, task, self._rate)
        self._arrived = asyncio.get_running_loop().time()

    async def deliver(self) -> None:
        """Emit everything but Accepted. No frame at all makes a file without samples.

        Raises:
            EngineError: no frames came, or what came are none, or they could not be decoded.
        """
        while (tensors := await self._next_tensors()) is not None:
            self._decoding.push(frames_of(tensors, self._vocoder))
            await self._speak()
        self._decoding.finish()
        await self._speak()
        self._sound.emit(await asyncio.to_thread(self._sound.finish), self._sound.samples, last=True)
        self._request.emit(sound_usage(0, audio_tokens(self._sound.samples, self._rate, self._vocoder.token_s)))
        self._request.emit(Done())

    async def _next_tensors(self) -> dict[str, Tensor] | None:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._request.next_tensors()
        except TimeoutError:
            message = f"no further codec frames came for {self._patience_s:g} s (input_timeout_s of the code2wav stage)"
            raise EngineError(Failed(504, message, "timeout_error", code=INPUT_TIMEOUT)) from None

    async def _speak(self) -> None:
        while self._decoding.ready:
            await self._request.ready()
            samples = await self._batches.piece(self._due(), self._decoding)
            data = await asyncio.to_thread(self._sound.push, samples)
            if self._task.streamed and len(samples):
                self._sound.emit(data, self._sound.samples)

    def _due(self) -> float:
        """When what came before has been heard; for a file, of which nothing is heard yet, when this piece would be."""
        due = self._arrived + self._sound.samples / self._rate
        return due if self._task.streamed else due + self._decoding.size * self._vocoder.token_s


def frames_of(tensors: dict[str, Tensor], vocoder: Vocoder[Any]) -> Codes:
    """The codec frames that a talker handed on.

    Raises:
        EngineError: 500, they are not what the vocoder takes; on a GPU they would end the process.
    """
    tensor = tensors.get("codes")
    if tensor is None or tensor.dtype != "int32" or tensor.shape[1:] != vocoder.frame_shape:
        came = f"{tensor.dtype} {tensor.shape}" if tensor else f"no codes, but {', '.join(tensors) or 'nothing'}"
        raise _wrong(f"came {came} in the place of int32 {('n', *vocoder.frame_shape)}")
    codes = np.frombuffer(tensor.data, np.int32).reshape(tensor.shape)
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < vocoder.codes:
        raise _wrong(f"came codes from {codes.min()} to {codes.max()}; it has {vocoder.codes}")
    return codes


def _wrong(what: str) -> EngineError:
    return EngineError(Failed(500, f"the talker and the vocoder do not fit: {what}"))
