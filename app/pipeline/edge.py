"""The edge between two stages of a request whose tensors go from replica to replica: what is on it, and since when."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from app.cluster import messages as m
from app.pipeline.request import RequestStream
from app.protocol.errors import ApiError

RELEASE_STEP = 1 << 20
"""Used bytes of small tensors that are released together: a part of engines.outflow.WINDOW."""


def _as_it_is(error: ApiError) -> ApiError:
    return error


class Part(NamedTuple):
    """One stage of a request; it fails where nothing moves on the edge before it for `timeout_s` seconds.

    `told` makes of its refusal what the client is told.
    """

    name: str
    stream: RequestStream
    timeout_s: float = math.inf
    told: Callable[[ApiError], ApiError] = _as_it_is


class _Passed(NamedTuple):
    number: int
    size: int
    held: bool


class TensorEdge:
    """Appends what `producer` made to the request of `consumer`, and releases what that has used.

    The edge ends with data or empty when the producer is done (`end`); with an error where one of the two fails, which
    the reader of their events notices, or where nothing moves on it for too long (`due`, `overdue`).
    """

    def __init__(self, producer: Part, consumer: Part) -> None:
        self._producer = producer
        self._consumer = consumer
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._passed: deque[_Passed] = deque()
        self._used = 0
        self._unreleased = 0
        self._ended = False
        self._closed = False
        consumer.stream.source = producer.stream
        consumer.stream.on_consumed = self._on_consumed

    def pass_on(self, event: m.Tensors) -> None:
        """More for the consumer; where that is done already, nobody needs it."""
        if self._closed:
            self._producer.stream.release_tensors(event.number)
            return
        self._consumer.stream.append(event.packed)
        self._passed.append(_Passed(event.number, event.size, event.held))
        self.move()

    def end(self) -> None:
        """The producer is done."""
        self._ended = True
        if not self._closed:
            self._consumer.stream.append(b"", last=True)
            self.move()

    def close(self) -> None:
        """The consumer is done; it needs nothing of what is on the way."""
        self._closed = True
        if self._passed:
            self._producer.stream.release_tensors(self._passed[-1].number)
            self._passed.clear()

    def move(self) -> None:
        """Something has happened: at either end, or the consumer has made something of its input."""
        self._since = self._clock()

    def pause(self, seconds: float) -> None:
        """For so long nobody has asked for the events of the two, which is not their fault."""
        self._since += seconds

    def wait_for(self, before: TensorEdge) -> None:
        """Nobody is to blame for silence here while the producer still gets input by the edge `before` it."""
        if not (self._passed or before._ended):
            self._since = max(self._since, before._since)

    def _on_consumed(self, count: int) -> None:
        self.move()
        last, held = -1, False
        while self._used < count and self._passed:
            self._used += 1
            last, size, one_held = self._passed.popleft()
            self._unreleased += size
            held = held or one_held
        if last >= 0 and (held or self._unreleased >= RELEASE_STEP):
            self._unreleased = 0
            self._producer.stream.release_tensors(last)

    @property
    def due(self) -> float:
        """The time of the event loop at which it fails."""
        return math.inf if self._closed else self._since + self._consumer.timeout_s

    def overdue(self) -> ApiError | None:
        """504 with the side that is to blame, once it is due."""
        if self._clock() < self.due:
            return None
        producer, consumer, limit = self._producer.name, self._consumer.name, f"{self._consumer.timeout_s:g} s"
        if self._passed or self._ended:
            message = f"stage {consumer} made nothing of what stage {producer} had sent it for {limit}"
        else:
            message = f"stage {consumer} got nothing from stage {producer} for {limit}"
        return ApiError(504, message, code=m.INPUT_TIMEOUT)
