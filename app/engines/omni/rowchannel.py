"""The rows of requests on their way from EngineCore's worker to the replica: one ZeroMQ PUSH, one PULL, one message a
step. Whoever falls behind stops the other: a step waits until the replica has read all but the last few messages."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from app.cluster.rundir import SOCKET_PATH_LIMIT
from app.cluster.transport import Channel, Frames, new_context

logger = logging.getLogger("app.replica")

_UNREAD = 8
"""Messages that each side keeps for the other; a step of a long prompt may be tens of megabytes."""


class Span(msgspec.Struct, array_like=True):
    """Consecutive positions of one request, from `start` on. `positions` are the prompt's M-RoPE positions, int32
    [3, prompt], with the first span of a request and empty with all others."""

    key: int
    start: int
    count: int
    positions: bytes = b""


class Step(msgspec.Struct, array_like=True):
    """The head of a message; its rows, `width` numbers of `dtype` each, follow in the order of the spans."""

    dtype: str
    width: int
    spans: list[Span]


class Rows(msgspec.Struct):
    """A span with its rows, `width` numbers of `dtype` each."""

    span: Span
    dtype: str
    width: int
    data: memoryview

    @property
    def size(self) -> int:
        """Bytes of one row."""
        return len(self.data) // self.span.count


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Step).decode


class RowSender:
    """The worker's end. Blocking; used by one thread."""

    def __init__(self, address: str) -> None:
        self._socket = new_context().socket(zmq.PUSH)
        self._socket.sndhwm = _UNREAD
        self._socket.connect(address)

    def send(self, step: Step, rows: memoryview) -> None:
        """Send the rows of a step, which must not change any more; waits while the replica does not read."""
        self._socket.send_multipart([_encode(step), rows], copy=False)


class RowReceiver:
    """The replica's end: gives every span to whoever is registered for its request, and drops the others."""

    def __init__(self, scratch: str = "") -> None:
        self._directory = _private_directory(scratch)
        self._takers: dict[int, Callable[[Rows], None]] = {}
        self.address = f"ipc://{self._directory}/rows"
        self._context = new_context()
        socket = self._context.socket(zmq.PULL)
        socket.rcvhwm = _UNREAD
        socket.bind(self.address)
        self._channel = Channel(socket, self._on_message)

    def add(self, take: Callable[[Rows], None]) -> int:
        """A new key, under which `take` gets what comes."""
        key = secrets.randbits(63)
        self._takers[key] = take
        return key

    def remove(self, key: int) -> None:
        """Drop what still comes for that key."""
        del self._takers[key]

    def _on_message(self, frames: Frames) -> None:
        step, rows = _decode(frames[0].buffer), frames[1].buffer
        size = len(rows) // sum(span.count for span in step.spans)
        offset = 0
        for span in step.spans:
            end = offset + span.count * size
            if (take := self._takers.get(span.key)) is not None:
                take(Rows(span, step.dtype, step.width, rows[offset:end]))
            offset = end

    def close(self) -> None:
        """Close the socket and remove what it left in the file system."""
        self._channel.close()
        self._context.term()
        shutil.rmtree(self._directory, ignore_errors=True)


def _private_directory(scratch: str) -> Path:
    """In `scratch`, which goes with the server, where the path of a socket in there is short enough."""
    name = f"rows-{os.getpid()}-"
    room = SOCKET_PATH_LIMIT - len(f"{scratch}/{name}{'0' * 8}/rows")
    return Path(tempfile.mkdtemp(prefix=name, dir=scratch if scratch and room > 0 else None))
