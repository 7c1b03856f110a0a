"""One request: choose a replica, send it there, hand its events out, send it once more if the replica dies unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from app.cluster import messages as m
from app.pipeline.connection import ReplicaLostError, Stream, api_error
from app.pipeline.graph import unavailable
from app.pipeline.inputs import Inputs
from app.pipeline.pool import Holder, StagePool
from app.protocol.errors import ApiError
from app.telemetry.requests import EndReason, RequestMeter, StageMeter, reason_of

T = TypeVar("T")
logger = logging.getLogger("app.pipeline")

CREDIT_WINDOW = 1 << 20
_CREDIT_STEP = CREDIT_WINDOW // 4
_ATTEMPTS = 2


class _QueueFullError(Exception):
    """This replica takes no more; another one may."""


class _LeavingError(Exception):
    """This replica drains; it never started on the request."""


_PASSED_ON: dict[str, type[Exception]] = {m.QUEUE_FULL: _QueueFullError, m.REPLICA_LEAVES: _LeavingError}


class AnswerStream(Protocol):
    """What a submitted request is answered with, whatever stages work on it; see RequestStream."""

    def __aiter__(self) -> AnswerStream: ...

    async def __anext__(self) -> list[m.AnyEvent]: ...

    async def aclose(self, reason: EndReason = "client_disconnect") -> None: ...


class RequestStream:
    """The answer to one request: an async iterator of batches of events, which ends after Done.

    Iteration raises ApiError when the request fails. Always call `aclose`, once the events have been used: it aborts
    what still runs, and lets the replica free what the events referred to. `meter` counts it.

    `whole`: nobody uses the answer before it is complete, so it comes as one batch, and a replica that dies amid it has
    not been heard.
    `source`: the request whose tensors are appended to this one; `on_consumed` is told how many of the appended inputs
    the engine has used and needs no longer.
    """

    def __init__(
        self,
        pool: StagePool | Holder,
        submit: m.Submit,
        body: bytes,
        limit_s: float,
        meter: RequestMeter | StageMeter,
        *,
        whole: bool = False,
    ) -> None:
        self._pool = pool
        self._whole = whole
        self._meter = meter
        self._limit_s = limit_s
        self._deadline = asyncio.get_running_loop().time() + limit_s if limit_s > 0 else None
        self._submit = submit
        self._body = body
        self._stream: Stream | None = None
        self._tried: set[tuple[str, int]] = set()
        self._waiting: list[m.AnyEvent] = []
        self._inputs = Inputs()
        self.source: RequestStream | None = None
        self.on_consumed: Callable[[int], None] = _unheard
        self._taken = False
        self._streamed = False
        self._finished = False
        self._owed = 0
        self._full = False

    async def start(self) -> None:
        """Send it and wait until an engine has accepted it; see Orchestrator.submit."""
        try:
            await self._in_time(self._open())
        except BaseException as error:
            await self.aclose(reason_of(error))
            raise

    async def _in_time(self, step: Awaitable[T]) -> T:
        if self._deadline is None:
            return await step
        try:
            async with asyncio.timeout_at(self._deadline):
                return await step
        except TimeoutError:
            message = f"the answer was not complete within its time limit of {self._limit_s:g} s"
            raise ApiError(504, message, code="deadline_exceeded") from None

    async def _open(self) -> None:
        """Send it and wait for Accepted, on another replica if the first one dies."""
        self._taken = False
        self._inputs.rewind()
        while True:
            connection = self._pool.pick(self._tried, self._body) if len(self._tried) < _ATTEMPTS else None
            if connection is None:
                raise self._nobody()
            self._tried.add(connection.replica)
            self._stream = connection.submit(self._submit, self._body)
            self._stream.on_consumed = self._consumed
            try:
                await self._accepted(self._stream)
                self._taken = True
                self._pass_input_on()
                return
            except ReplicaLostError:
                continue
            except _LeavingError:
                connection.release(self._stream)
                connection.leaves()
                self._tried.discard(connection.replica)
            except _QueueFullError:
                connection.release(self._stream)
                self._full = True

    def _nobody(self) -> ApiError:
        if self._full:
            return ApiError(
                429,
                f"all replicas of stage {self._pool.stage.name} are busy; try again later",
                code=m.QUEUE_FULL,
                headers={"Retry-After": "1"},
            )
        if len(self._tried) < _ATTEMPTS:
            return unavailable([self._pool.stage.name])
        # Whatever it is that kills replicas must not be sent to a third one.
        logger.error("request %s: two replicas died with it; it is not sent again", self._submit.request_id)
        return ApiError(503, "two replicas were lost while they served this request", code=m.REPLICA_LOST)

    async def _accepted(self, stream: Stream) -> None:
        first, *rest = await stream.next_batch()
        if isinstance(first, m.Failed):
            raise _PASSED_ON.get(first.code or "") or api_error(first)
        assert isinstance(first, m.Accepted), first
        self._waiting, self._owed = [], 0
        self._keep(rest)
        self._meter.accepted()

    def append(self, data: bytes | memoryview, *, last: bool = False) -> None:
        """More input for the request, where its engine takes any; empty where it only ends the input."""
        self._inputs.add(data, last)
        if self._taken:
            self._pass_input_on()

    def _pass_input_on(self) -> None:
        """What came between two replicas is for the one that accepts the request."""
        for data, last in self._inputs.unsent():
            if self._stream is not None and not self._stream.ended:
                self._stream.connection.append(self._submit.request_id, data, last=last)

    def _consumed(self, count: int) -> None:
        self._inputs.use(count)
        self.on_consumed(count)

    @property
    def lost(self) -> bool:
        """The replica that worked on it is gone, and what it held for it."""
        return self._stream is not None and self._stream.connection.closed

    def release_tensors(self, through: int) -> None:
        """The next stage has used its Tensors events up to that number."""
        if self._stream is not None:
            self._stream.connection.release_tensors(self._stream, through)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        if self._finished:
            raise StopAsyncIteration
        self._return_credit()
        try:
            events = await self._in_time(self._next())
            if isinstance(events[0], m.Failed):
                raise api_error(events[0])
        except ApiError as error:
            self.abort(reason_of(error))
            raise
        if isinstance(events[-1], m.Failed):  # what came before it goes out first
            self._waiting = [events.pop()]
        if not self._whole:
            self._owed += sum(map(m.cost, events))
        self._meter.take(events)
        if isinstance(events[-1], m.Done):
            self.abort("done")
        return events

    async def _next(self) -> list[m.AnyEvent]:
        while not self._waiting or (self._whole and not isinstance(self._waiting[-1], m.Done | m.Failed)):
            assert self._stream is not None
            try:
                batch = await self._stream.next_batch()
            except ReplicaLostError:
                if self._bound or len(self._tried) >= _ATTEMPTS:
                    raise self._lost() from None
                await self._open()
                continue
            self._keep(batch)
        events, self._waiting = self._waiting, []
        self._streamed = self._streamed or not all(isinstance(event, m.Progress) for event in events)
        return events

    def _keep(self, batch: list[m.AnyEvent]) -> None:
        """What is kept until the answer is complete waits for nobody: the engine may send more at once."""
        if not self._whole:
            self._waiting = batch
            return
        self._waiting += batch
        self._owed += sum(map(m.cost, batch))
        self._return_credit()

    def _return_credit(self) -> None:
        """Who asks for the next batch has sent the last one to the HTTP client."""
        if self._owed >= _CREDIT_STEP and self._stream is not None and not self._stream.ended:
            self._stream.connection.credit(self._submit.request_id, self._owed)
            self._owed = 0

    @property
    def _bound(self) -> bool:
        """No other replica can take over: some of the answer is out, or some of the input cannot be had again."""
        return self._streamed or self._inputs.used > 0 or (self.source is not None and self.source.lost)

    def _lost(self) -> ApiError:
        if self._bound:
            return ApiError(503, "the replica that served this request was lost", code=m.REPLICA_LOST)
        return self._nobody()

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort the request if it still runs, for `reason`; may be called again."""
        self.abort(reason)
        if self._stream is not None:
            self._stream.connection.release_refs(self._stream)

    def abort(self, reason: EndReason) -> None:
        """End the request for `reason`, and its work where that goes on; what came of it can still be used."""
        self._finished = True
        self._meter.end(reason)
        self.on_consumed = _unheard
        if self._stream is not None:
            self._stream.on_consumed = _unheard  # else a large body would stay until garbage is collected for its cycle
            if self._stream.connection.release(self._stream):
                self._meter.aborted(reason)


def _unheard(count: int) -> None:
    """Of a request that has ended nobody wants to know how many inputs it has used."""
