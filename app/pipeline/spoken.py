"""A chat that is answered in words and in sound: the text stage and the speech stage that it feeds, as one answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from app.cluster import messages as m
from app.pipeline.content import content_of
from app.pipeline.request import RequestStream
from app.pipeline.spokenevents import SpokenEvents
from app.protocol.audiochat import of_audio
from app.protocol.errors import ApiError
from app.telemetry.requests import EndReason, RequestMeter, reason_of


class SpokenStream:
    """The events of both stages as they come: an async iterator of batches like RequestStream's.

    Text goes out at once, and with the same step to the speech stage (`streams`; otherwise when it is complete). Only
    what ends an answer waits until both stages are done: Finish and Done. Each Usage counts both stages. Where one
    stage fails, or is silent for `timeout_s` seconds while it is its turn, the other one is aborted and iteration
    raises ApiError. `text` and `speech` are requests that have not been started; `meter` counts the whole.
    """

    def __init__(
        self, text: RequestStream, speech: RequestStream, meter: RequestMeter, *, streams: bool, timeout_s: float
    ) -> None:
        self._text = _Side(text, "text", timeout_s)
        self._speech = _Side(speech, "speech", timeout_s)
        self._speech.turn = False
        self._sides = (self._text, self._speech)
        self._meter = meter
        self._streams = streams
        self._held: list[str] = []
        self._sorted = SpokenEvents()
        self._failure: ApiError | None = None

    async def start(self) -> None:
        """Return when both stages have accepted; what either refuses is raised before anything is sent."""
        try:
            await self._start_speech()
            await self._text.stream.start()
        except BaseException as error:
            await self.aclose(reason_of(error))
            raise
        self._meter.accepted()

    async def _start_speech(self) -> None:
        try:
            await self._speech.stream.start()
        except ApiError as error:
            raise of_audio(error) from None

    def __aiter__(self) -> SpokenStream:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        events: list[m.AnyEvent] = []
        while not events:
            if self._failure is not None:
                raise self._failure
            if all(side.done for side in self._sides):
                raise StopAsyncIteration
            events = await self._step()
        self._meter.take(events)
        if isinstance(events[-1], m.Done):
            self._meter.end("done")
        return events

    async def _step(self) -> list[m.AnyEvent]:
        """What the stages have sent, after waiting for one of them."""
        await self._wait()
        complete = self._speech.turn
        events: list[m.AnyEvent] = []
        for side, take in ((self._text, self._take_text), (self._speech, self._sorted.of_sound)):
            try:
                events += take(side.taken())
            except ApiError as error:
                self._failure = self._failure or error
        if self._speech.done and not complete and self._failure is None:
            self._failure = ApiError(500, "the speech stage ended before its input did", code="stage_failed")
        if self._failure is not None:
            await self._abort(reason_of(self._failure))
        elif all(side.done for side in self._sides):
            events += self._sorted.ending()
        return events

    async def _wait(self) -> None:
        pending = [side.ask() for side in self._sides if not side.done]
        due = min(side.due for side in self._sides)
        patience = None if due == math.inf else max(0.0, due - asyncio.get_running_loop().time())
        await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)

    def _take_text(self, batch: Sequence[m.AnyEvent]) -> list[m.AnyEvent]:
        events = self._sorted.of_text(batch)
        if batch:
            self._pass_on(content_of(events))
        return events

    def _pass_on(self, words: str) -> None:
        """Give the speech stage what has been said, or keep it until all has been said."""
        if words:
            self._held.append(words)
        last = self._text.done
        if last or (self._streams and self._held):
            self._speech.stream.append("".join(self._held).encode(), last=last)
            self._held = []
        if last:
            self._speech.begin_turn()

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort what still runs, for `reason`, and free what the events referred to; may be called again."""
        await self._abort(reason)
        for side in self._sides:
            await side.stream.aclose(reason)

    async def _abort(self, reason: EndReason) -> None:
        self._meter.end(reason)
        for side in self._sides:
            side.stream.abort(reason)
        waits = [side.pending for side in self._sides if side.pending is not None]
        for wait in waits:
            wait.cancel()
        if waits:
            await asyncio.wait(waits)
        for side in self._sides:
            side.forget()


class _Side:
    """One of the two stages: the batch that is awaited from it, and until when, as long as it is its `turn`."""

    def __init__(self, stream: RequestStream, name: str, timeout_s: float) -> None:
        self.stream = stream
        self.pending: asyncio.Task[list[m.AnyEvent]] | None = None
        self.done = False
        self.turn = True
        self._name = name
        self._timeout_s = timeout_s
        self._clock = asyncio.get_running_loop().time
        self._since = 0.0

    @property
    def due(self) -> float:
        """When the wait becomes a failure."""
        return self._since + self._timeout_s if self.turn and self.pending is not None else math.inf

    def begin_turn(self) -> None:
        """From now on it has all that it needs."""
        self.turn = True
        self._since = self._clock()

    def ask(self) -> asyncio.Task[list[m.AnyEvent]]:
        """Wait for the next batch; who asks has made use of the last one."""
        if self.pending is None:
            self.pending = asyncio.create_task(self.stream.__anext__())
            self._since = self._clock()
        return self.pending

    def taken(self) -> list[m.AnyEvent]:
        """The batch that has come, empty if none has.

        Raises:
            ApiError: the stage failed; 504, it was silent for too long.
        """
        if self.pending is None:
            return []
        if not self.pending.done():
            if self._clock() >= self.due:
                message = f"nothing came from the {self._name} stage for {self._timeout_s:g} s"
                raise ApiError(504, message, code=m.INPUT_TIMEOUT)
            return []
        finished, self.pending = self.pending, None
        batch = finished.result()
        self.done = isinstance(batch[-1], m.Done)
        return batch

    def forget(self) -> None:
        """The wait is over, and nobody asks any more how it ended."""
        if self.pending is not None and not self.pending.cancelled():
            self.pending.exception()
        self.pending = None
