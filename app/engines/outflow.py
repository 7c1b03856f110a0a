"""The tensors of one request on their way from its replica to the next stage, which may be slower."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.tensors import Exchange

WINDOW = 4 << 20
"""Bytes that the next stage may have been sent and has not used; half of what its replica takes unread."""
_HELD = WINDOW // 16
"""What an event counts at least that holds something: that is an open file, however small."""


class Outflow:
    """Sends a request's tensors in order, as fast as the next stage uses them; what it is not ready for waits here.

    It has nothing to do with credit: text goes out to the HTTP client however far the next stage is.
    """

    def __init__(self, exchange: Exchange, client: bytes, request_id: str, send: Callable[[m.Tensors], None]) -> None:
        self._exchange = exchange
        self._client = client
        self._request_id = request_id
        self._send = send
        self._count = 0
        self._unused: deque[tuple[int, int]] = deque()  # number and weight of those that have been sent
        self._outstanding = 0
        self._later: deque[m.Tensors] = deque()
        self._drained = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Some tensors have not been sent yet."""
        return bool(self._later)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Send them, or keep them until they can be sent.

        Raises:
            EngineError: there is no room for them.
            ValueError: the data of a tensor does not fit its dtype and shape.
        """
        event = self._exchange.pack(self._client, self._request_id, self._count, tensors)
        if not self._later and self._open:
            self._pass_on(event)
        else:
            self._exchange.keep(event)
            self._later.append(event)
            self._drained.clear()
        self._count += 1

    def use(self, through: int) -> None:
        """The next stage has used all events up to that number."""
        while self._unused and self._unused[0][0] <= through:
            self._outstanding -= self._unused.popleft()[1]
        while self._later and self._open:
            event = self._later.popleft()
            self._exchange.unkeep(event)
            self._pass_on(event)
        if not self._later:
            self._drained.set()

    async def ready(self) -> None:
        """Wait until nothing waits."""
        if self._later:
            await self._drained.wait()

    def drop(self) -> None:
        """Nobody wants the rest."""
        while self._later:
            self._exchange.unkeep(self._later.pop())

    @property
    def _open(self) -> bool:
        """One event more may be sent, however large: what has been used is not released byte by byte."""
        return self._outstanding < WINDOW

    def _pass_on(self, event: m.Tensors) -> None:
        self._unused.append((event.number, _weight(event)))
        self._outstanding += _weight(event)
        self._send(event)


def _weight(event: m.Tensors) -> int:
    return max(event.size, _HELD) if event.held else event.size
