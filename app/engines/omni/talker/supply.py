"""What a request's thinker makes, taken in as it comes, and handed to the talker in chunks when that can go on."""

from __future__ import annotations

import asyncio

from app.engines.base import Request
from app.engines.omni.talker.family import Chunk, Utterance


class Supply:
    """Reads while it is entered: `async with Supply(request, utterance) as supply`."""

    def __init__(self, request: Request, utterance: Utterance) -> None:
        self._request = request
        self._utterance = utterance
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supply:
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        while (tensors := await self._request.next_tensors()) is not None:
            self._utterance.feed(tensors)
            self._changed.set()
        self._utterance.end()

    async def chunk(self) -> Chunk | None:
        """All that has come and not been taken, waiting for it; None where the thinker has ended and nothing is left.

        Raises:
            EngineError: the thinker's tensors cannot be read.
        """
        assert self._reading is not None
        while True:
            self._changed.clear()
            over = self._reading.done()
            if over:
                self._reading.result()
            if (chunk := self._utterance.take()) is not None or over:
                return chunk
            await self._changed.wait()
