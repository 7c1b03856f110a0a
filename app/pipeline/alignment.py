"""Words with their times: one stage makes or hears the speech, then the forced aligner says when each word is said."""

from __future__ import annotations

from collections.abc import Callable

from app.cluster import messages as m
from app.pipeline.request import RequestStream
from app.protocol.aligning import AlignTaskOf, encode_task
from app.protocol.errors import ApiError
from app.telemetry.requests import EndReason, RequestMeter, reason_of


class AlignedStream:
    """The events of the first stage, and before Done an Extra: the Alignment as JSON; iterates as RequestStream.

    `first` is not started; `align` makes the request of the aligner from its body; `meter` counts the whole.
    """

    def __init__(
        self,
        first: RequestStream,
        align: Callable[[bytes], RequestStream],
        task_of: AlignTaskOf,
        meter: RequestMeter,
    ) -> None:
        self._first = first
        self._align = align
        self._task_of = task_of
        self._meter = meter
        self._events: list[m.AnyEvent] = []
        self._second: RequestStream | None = None
        self._finished = False

    async def start(self) -> None:
        """Return when the first stage has accepted the request; raises what that refuses."""
        try:
            await self._first.start()
        except BaseException as error:
            await self.aclose(reason_of(error))
            raise
        self._meter.accepted()

    def __aiter__(self) -> AlignedStream:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        if self._finished:
            raise StopAsyncIteration
        try:
            events = await anext(self._first)
            if isinstance(events[-1], m.Done):
                events = [*events[:-1], await self._alignment([*self._events, *events[:-1]]), events[-1]]
        except ApiError as error:
            self._meter.end(reason_of(error))
            raise
        self._events += events
        self._meter.take(events)
        if isinstance(events[-1], m.Done):
            self._finished = True
            self._meter.end("done")
        return events

    async def _alignment(self, events: list[m.AnyEvent]) -> m.Extra:
        """
        Raises:
            ApiError: what the aligner refuses.
        """
        self._second = self._align(encode_task(self._task_of(events)))
        await self._second.start()
        (answer,) = [event async for batch in self._second for event in batch if isinstance(event, m.Document)]
        return m.Extra(answer.body)

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort what still runs, for `reason`, and free what the events referred to; may be called again."""
        self._meter.end(reason)
        await self._first.aclose(reason)
        if self._second is not None:
            await self._second.aclose(reason)
