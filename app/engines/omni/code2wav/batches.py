"""The engine's thread, and who is next on it: those of the waiting requests with the least left to hear, together."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

import torch

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.device import is_out_of_memory, out_of_memory, release_memory
from app.engines.omni.code2wav.family import Decoding, Vocoder
from app.engines.speech.family import AbandonedError, Samples
from app.engines.threads import same_number_of_threads

logger = logging.getLogger("app.code2wav")

Result = Samples | Exception


class _Turn(NamedTuple):
    due: float
    number: int
    decoding: Decoding
    sound: asyncio.Future[Samples]


class Batches:
    """Pieces of sound, several in a call of the model, the earliest due first. `steps`: the model's signs of life."""

    def __init__(self, vocoder: Vocoder[Any], most: int) -> None:
        """`most` requests in a call, of as many frames as so many pieces of a stream have; a larger piece is alone."""
        self.steps = 0
        self._vocoder = vocoder
        self._most = most
        self._thread = ThreadPoolExecutor(1, "code2wav", same_number_of_threads())
        self._line: list[_Turn] = []
        self._batch: list[_Turn] = []
        self._arrivals = count()

    @property
    def running(self) -> int:
        """Requests that are being decoded, also where nobody wants it any more."""
        return len(self._batch)

    @property
    def waiting(self) -> int:
        """Requests whose next piece is in line, and wanted."""
        return sum(not turn.sound.done() for turn in self._line)

    async def piece(self, due: float, decoding: Decoding) -> Samples:
        """The next piece of sound of a decoding that is ready; leaving this wait abandons it.

        Raises:
            EngineError: it could not be made.
        """
        sound: asyncio.Future[Samples] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, _Turn(due, next(self._arrivals), decoding, sound))
        self._go_on()
        return await sound

    def abandon(self) -> None:
        """Cancel every piece that somebody waits for."""
        for turn in (*self._batch, *self._line):
            turn.sound.cancel()

    def close(self) -> None:
        """End the thread; waits for its current step."""
        self._thread.shutdown(cancel_futures=True)

    def _go_on(self) -> None:
        if not self._batch and (batch := self._next()):
            self._batch = batch
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._decode, batch)
            work.add_done_callback(self._made)

    def _next(self) -> list[_Turn]:
        batch: list[_Turn] = []
        room = self._most * self._vocoder.largest
        while self._line and len(batch) < self._most:
            turn = self._line[0]
            if not turn.sound.done():
                room -= turn.decoding.size
                if batch and room < 0:
                    break
                batch.append(turn)
            heapq.heappop(self._line)
        return batch

    def _made(self, work: asyncio.Future[list[Result]]) -> None:
        batch, self._batch = self._batch, []
        if work.cancelled():
            return
        for turn, result in zip(batch, work.result(), strict=True):
            if turn.sound.done():
                continue
            if isinstance(result, Exception):
                turn.sound.set_exception(result)
            else:
                turn.sound.set_result(result)
        self._go_on()

    # ------------------------------------------------------------------------------------------------ engine's thread

    def _decode(self, batch: Sequence[_Turn]) -> list[Result]:
        """One that fails is no reason for another one to fail: those of a batch are tried again, each alone."""

        def step() -> None:
            self.steps += 1
            if all(turn.sound.done() for turn in batch):
                raise AbandonedError

        try:
            with torch.inference_mode():
                return list(self._vocoder.decode([turn.decoding for turn in batch], step))
        except AbandonedError as error:
            return [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is told
            if is_out_of_memory(error):
                release_memory()
            if len(batch) == 1:
                return [_explained(error)]
        return [result for turn in batch for result in self._decode([turn])]


def _explained(error: Exception) -> Exception:
    if is_out_of_memory(error):
        return out_of_memory("sound", "ask for a shorter answer, or for a stream")
    logger.error("a vocoder failed", exc_info=error)
    return EngineError(Failed(500, f"{type(error).__name__} in the vocoder; see the server's log"))
