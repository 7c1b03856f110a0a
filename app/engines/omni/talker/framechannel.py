"""Frames of codes on their way from vLLM's worker, which makes them, to the replica, past vLLM, which knows no such output.

A request's own arguments (SamplingParams.extra_args) say where its frames go. One message a step holds those of all its
requests; messages keep their order.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio


class Destination(msgspec.Struct, frozen=True):
    """Where the frames of one request go: a receiver's address, and the name that it knows the request by there."""

    address: str
    name: str


class _Frame(msgspec.Struct, array_like=True):
    name: str
    codes: list[int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Frame])


class FrameSender:
    """In the worker. It never waits: a replica that reads nothing any more is about to end its worker too."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def send(self, frames: Iterable[tuple[Destination, list[int]]]) -> None:
        """Send the frames of one step, a list of codes each."""
        messages: dict[str, list[_Frame]] = {}
        for destination, codes in frames:
            messages.setdefault(destination.address, []).append(_Frame(destination.name, codes))
        for address, message in messages.items():
            self._socket(address).send(_encoder.encode(message))

    def _socket(self, address: str) -> zmq.Socket[bytes]:
        if address not in self._sockets:
            socket = self._context.socket(zmq.PUSH)
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.LINGER, 0)
            socket.connect(address)
            self._sockets[address] = socket
        return self._sockets[address]


class FrameReceiver:
    """In the replica, on its event loop. `scratch` is where its socket lies; "": in a directory of its own."""

    def __init__(self, scratch: str) -> None:
        self._own = None if scratch else tempfile.TemporaryDirectory(prefix="omni-")
        directory = self._own.name if self._own is not None else scratch
        self.address = f"ipc://{directory}/frames-{uuid.uuid4().hex[:8]}"
        self._lines: dict[str, Line] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        self._reading = asyncio.create_task(self._read())

    def line(self, name: str) -> Line:
        """The frames of a request that goes by this name from now on, until `drop`."""
        self._lines[name] = Line()
        return self._lines[name]

    def drop(self, name: str) -> None:
        """No more is wanted of it; frames that still come are thrown away."""
        self._lines.pop(name, None)

    def close(self) -> None:
        """Stop, and remove the socket."""
        self._reading.cancel()
        self._context.destroy(linger=0)
        Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._own is not None:
            self._own.cleanup()

    async def _read(self) -> None:
        while True:
            for frame in _decoder.decode(await self._socket.recv()):
                if frame.name in self._lines:
                    self._lines[frame.name].put(frame.codes)


class Line:
    """Frames of one request, in the order in which they were made."""

    def __init__(self) -> None:
        self._frames: deque[list[int]] = deque()
        self._came = asyncio.Event()

    def put(self, codes: list[int]) -> None:
        """One more has come."""
        self._frames.append(codes)
        self._came.set()

    async def take(self, count: int) -> list[list[int]]:
        """The next `count` frames, waiting for them."""
        while len(self._frames) < count:
            self._came.clear()
            await self._came.wait()
        return [self._frames.popleft() for _ in range(count)]
