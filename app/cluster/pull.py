"""Bytes that a replica of another host holds: pulled through its data socket, piece by piece, as long as it holds them.

The consumer asks for each piece (Pull, answered by Pulled) and keeps a few of them on the way, so the producer
remembers nothing of a transfer, never has more than those few in its memory, and goes on with everything else between
two pieces. A piece can be asked for again until the ref is released. The data socket lets in only who has the token.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.refs import Ref, RefStore
from app.cluster.transport import Channel, Frames, Payload, dealer

PIECE = 1 << 20
"""Bytes of one Pull."""
ON_THE_WAY = 8
"""Pieces of one ref that have been asked for and are not there yet."""
AT_ONCE = 4
"""Refs that a replica pulls at a time; more wait their turn."""
PATIENCE_S = 10.0
"""How long a producer may be silent that has been asked for something."""


class PullError(Exception):
    """The bytes cannot be had; str() says why."""


class PullTimeoutError(PullError):
    """The producer does not send them."""


def answer(refs: RefStore, pull: m.Pull) -> list[Payload]:
    """The producer's answer to a Pull, in frames."""
    data = refs.piece(pull.name, pull.offset, min(pull.length, PIECE))
    head = m.encode(m.Pulled(pull.transfer, pull.offset))
    return [head] if data is None else [head, data]


class Puller:
    """Pulls for one replica. A connection to a producer stays until that is gone."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], access: Access) -> None:
        self._context = context
        self._access = access
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._producers: dict[str, _Producer] = {}

    async def pull(self, address: str, ref: Ref) -> memoryview:
        """A copy of the bytes that the replica at `address` holds.

        Raises:
            PullError: they are held no longer, the producer is gone, refuses our token, or is silent for PATIENCE_S.
        """
        async with self._turns:
            producer = self._producers.get(address)
            if producer is None:
                producer = _Producer(self._context, address, self._access, self._forget)
                self._producers[address] = producer
            return await producer.fetch(ref)

    def close(self) -> None:
        """End all transfers."""
        for producer in list(self._producers.values()):
            producer.lose(PullError("this replica stops"))

    def _forget(self, address: str) -> None:
        self._producers.pop(address, None)


Piece = tuple[int, zmq.Frame | None] | PullError


class _Producer:
    """The connection to one producer, and the transfers over it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, access: Access, on_lost: Callable[[str], None]
    ) -> None:
        self._address = address
        self._on_lost = on_lost
        self._lost = False
        self._count = 0
        self._transfers: dict[int, asyncio.Queue[Piece]] = {}
        self._heard = time.monotonic()
        self._socket = dealer(context, address, os.urandom(8), access)
        self._channel = Channel(self._socket, self._on_message)
        gone = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._monitor = Channel(self._socket.get_monitor_socket(gone), self._on_connection)

    async def fetch(self, ref: Ref) -> memoryview:
        self._count += 1
        number = self._count
        arrived = self._transfers[number] = asyncio.Queue()
        if len(self._transfers) == 1:
            self._heard = time.monotonic()
        try:
            return await self._fetch(ref, number, arrived)
        finally:
            del self._transfers[number]

    async def _fetch(self, ref: Ref, number: int, arrived: asyncio.Queue[Piece]) -> memoryview:
        data = memoryview(bytearray(ref.size))
        offsets = iter(range(0, ref.size, PIECE))
        on_the_way = 0
        while True:
            while on_the_way < ON_THE_WAY and (asked := next(offsets, None)) is not None:
                self._channel.send([m.encode(m.Pull(number, ref.name, asked, PIECE))])
                on_the_way += 1
            if not on_the_way:
                return data.toreadonly()
            offset, frame = await self._next(arrived)
            if frame is None:
                raise PullError("its producer holds it no longer")
            data[offset : offset + PIECE] = frame.buffer
            on_the_way -= 1

    async def _next(self, arrived: asyncio.Queue[Piece]) -> tuple[int, zmq.Frame | None]:
        while True:
            try:
                async with asyncio.timeout(self._heard + PATIENCE_S - time.monotonic()):
                    piece = await arrived.get()
            except TimeoutError:
                if time.monotonic() < self._heard + PATIENCE_S:
                    continue  # it sent pieces of other transfers
                piece = PullTimeoutError(f"the replica at {self._address} was silent for {PATIENCE_S:g} s")
                self.lose(piece)
            if isinstance(piece, PullError):
                raise piece
            return piece

    def _on_message(self, frames: Frames) -> None:
        self._heard = time.monotonic()
        message = m.decode_data(frames[0].buffer)
        if isinstance(message, m.Pulled) and message.transfer in self._transfers:
            self._transfers[message.transfer].put_nowait((message.offset, frames[1] if len(frames) > 1 else None))

    def _on_connection(self, frames: Frames) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])["event"]
        lost = event == zmq.EVENT_DISCONNECTED
        self.lose(PullError("the connection to its producer is lost" if lost else "its producer refuses our token"))

    def lose(self, error: PullError) -> None:
        """The producer is gone: every transfer fails. Whoever pulls from it again starts with a new connection."""
        if self._lost:
            return
        self._lost = True
        self._on_lost(self._address)
        self._socket.disable_monitor()
        self._monitor.close()
        self._channel.close()
        for arrived in self._transfers.values():
            arrived.put_nowait(error)
