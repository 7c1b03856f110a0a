"""A chat whose own model speaks it: thinker, talker and vocoder, each fed with the tensors of the one before."""

from __future__ import annotations

from app.cluster import messages as m
from app.pipeline.chain import TensorChain
from app.pipeline.spokenevents import SpokenEvents
from app.protocol.errors import ApiError
from app.telemetry.requests import EndReason, RequestMeter, reason_of


class SpokenChain:
    """The events of the first and of the last stage as they come: an async iterator of batches as RequestStream.

    Text goes out at once, however far the sound is; what ends an answer waits until all stages are done. Each Usage
    counts both: what the last stage counts are the audio tokens. Where a stage fails or falls silent, the others are
    aborted and iteration raises the ApiError of the one that is to blame. `chain` has not been started; `meter` counts
    the whole.
    """

    def __init__(self, chain: TensorChain, meter: RequestMeter) -> None:
        self._chain = chain
        self._meter = meter
        self._sorted = SpokenEvents()
        self._ended = False

    async def start(self) -> None:
        """Return when all stages have accepted; what any of them refuses is raised before anything is sent."""
        try:
            await self._chain.start()
        except BaseException as error:
            self._meter.end(reason_of(error))
            raise
        self._meter.accepted()

    def __aiter__(self) -> SpokenChain:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        events: list[m.AnyEvent] = []
        while not events:
            events = await self._next()
        self._meter.take(events)
        if self._ended:
            self._meter.end("done")
        return events

    async def _next(self) -> list[m.AnyEvent]:
        if self._ended:
            raise StopAsyncIteration
        try:
            position, batch = await anext(self._chain)
        except StopAsyncIteration:
            self._ended = True
            return self._sorted.ending()
        except ApiError as error:
            self._meter.end(reason_of(error))
            raise
        if self._chain.cut_short:
            await self._chain.fail(ApiError(500, "the sound ended before what it is made of", code="stage_failed"))
        if position == 0:
            return self._sorted.of_text(batch)
        return self._sorted.of_sound(batch) if position == self._chain.last else []

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort what still runs, for `reason`, and free what the events referred to; may be called again."""
        self._meter.end(reason)
        await self._chain.aclose(reason)
