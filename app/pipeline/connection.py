"""An API worker's connection to one replica, and the event streams that run over it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import zmq

from app.cluster import messages as m
from app.cluster import refs
from app.cluster.access import Access
from app.cluster.transport import Channel, Frames, dealer
from app.protocol.errors import ApiError

logger = logging.getLogger("app.pipeline")

_LAST = frozenset({m.Done, m.Failed})
_NOTICED = frozenset({m.Picture, m.Audio, m.Video, m.Tensors, m.Consumed})
"""Events that are more than handed on."""


class ReplicaLostError(Exception):
    """The replica is gone; whatever ran there has to run elsewhere or fail."""


class Stream:
    """The events of one request on one replica, in order, handed out in batches.

    `holds`: the replica holds something for the request until it is released. `on_consumed` is told how many of the
    appended inputs the engine has used.
    """

    def __init__(self, request_id: str, connection: Connection) -> None:
        self.request_id = request_id
        self.connection = connection
        self._events: list[m.AnyEvent] = []
        self._arrived = asyncio.Event()
        self._lost = False
        self.ended = False
        self.views: list[memoryview] = []
        self.holds = False
        self.on_consumed: Callable[[int], None] = lambda count: None

    def push(self, event: m.AnyEvent) -> None:
        self._events.append(event)
        self._arrived.set()
        if type(event) in _LAST:
            self.ended = True

    def lose(self) -> None:
        self._lost = True
        self._arrived.set()

    async def next_batch(self) -> list[m.AnyEvent]:
        """All events that have arrived, at least one.

        Raises:
            ReplicaLostError: the replica went away and everything that it sent has been handed out.
        """
        while not self._events:
            if self._lost:
                raise ReplicaLostError
            await self._arrived.wait()
            self._arrived.clear()
        events, self._events = self._events, []
        return events


class Connection:
    """One DEALER to one replica. `in_flight` is what balancing looks at; a `fresh` one came when others were there."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        info: m.ReplicaInfo,
        client_id: str,
        access: Access,
        *,
        fresh: bool = False,
    ) -> None:
        self.info = info
        self._came = time.monotonic() if fresh else -math.inf
        self._streams: dict[str, Stream] = {}
        self._calls: dict[str, asyncio.Future[bytes]] = {}
        self._call_count = 0
        self._channel = Channel(dealer(context, info.address, client_id.encode(), access), self._on_message)
        self._reads_refs = self.local and refs.readable(info.pid)
        if self.local and not self._reads_refs:
            logger.warning("memory of replica process %d cannot be opened; large results take a slower way", info.pid)

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    @property
    def fresh_s(self) -> float:
        """Seconds since it came, infinite where it was one of the first."""
        return time.monotonic() - self._came

    @property
    def replica(self) -> tuple[str, int]:
        """Names the process; its pid alone does not, other hosts have the same ones."""
        return self.info.address, self.info.pid

    @property
    def local(self) -> bool:
        """It was started by the master of this host."""
        return self.info.address.startswith("ipc:")

    @property
    def accepts(self) -> bool:
        """New requests may go there."""
        return self.info.state == "up"

    def leaves(self) -> None:
        """The replica refused a request because it drains: send no more, the master will confirm it in a moment."""
        self.info = msgspec.structs.replace(self.info, state="draining")

    def submit(self, submit: m.Submit, body: bytes) -> Stream:
        stream = Stream(submit.request_id, self)
        self._streams[submit.request_id] = stream
        submit.refs = self._reads_refs
        self._channel.send([m.encode(submit), body])
        return stream

    @property
    def closed(self) -> bool:
        """The replica is gone."""
        return self._channel.closed

    def append(self, request_id: str, data: bytes | memoryview, *, last: bool) -> None:
        """More input for a request that runs there."""
        self._channel.send([m.encode(m.Append(request_id, last)), data])

    def release(self, stream: Stream) -> bool:
        """The stream is no longer read; what still runs for it is aborted, which the result tells."""
        runs = self._streams.pop(stream.request_id, None) is not None and not stream.ended
        if runs:
            self._channel.send([m.encode(m.Abort(stream.request_id))])
        return runs

    def release_refs(self, stream: Stream) -> None:
        """What the stream referred to is no longer read: unmap it now, whoever still knows the events, and free it."""
        views, stream.views = stream.views, []
        for view in views:
            with suppress(BufferError):  # a thread still writes it to a file, for a client that has gone
                view.release()
        if views or stream.holds:
            stream.holds = False
            self._channel.send([m.encode(m.Release(stream.request_id))])

    def release_tensors(self, stream: Stream, through: int) -> None:
        """The next stage has used what the stream's Tensors up to that number referred to."""
        self._channel.send([m.encode(m.Release(stream.request_id, through))])

    def credit(self, request_id: str, amount: int) -> None:
        self._channel.send([m.encode(m.Credit(request_id, amount))])

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Ask the engine a question (bounded by the caller).

        Raises:
            ApiError: the engine refused it.
            ReplicaLostError: the replica went away.
        """
        self._call_count += 1
        call_id = str(self._call_count)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self._channel.send([m.encode(m.Call(call_id, method)), arguments])
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)

    def ping(self) -> None:
        self._channel.send([m.encode(m.Ping())])

    def close(self) -> None:
        """Close the socket; everything that waits on it learns that the replica is lost."""
        self._channel.close()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lose()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(ReplicaLostError())

    def _on_message(self, frames: Frames) -> None:
        match m.decode_data(frames[0].buffer):
            case m.Events(items):
                for request_id, event in items:
                    stream = self._streams.get(request_id)
                    if stream is not None and (type(event) not in _NOTICED or self._notice(stream, event)):
                        stream.push(event)
            case m.Result(call_id, failed):
                answer = self._calls.get(call_id)
                if answer is None or answer.done():
                    return
                if failed is not None:
                    answer.set_exception(api_error(failed))
                else:
                    answer.set_result(frames[1].bytes)

    def _notice(self, stream: Stream, event: m.AnyEvent) -> bool:
        """Whether the event is for the reader of the stream."""
        if isinstance(event, m.Consumed):
            stream.on_consumed(event.count)
            return False
        if isinstance(event, m.Tensors):
            stream.holds = stream.holds or event.held
        return not isinstance(event, m.Media) or self._resolve(stream, event)

    def _resolve(self, stream: Stream, event: m.Media) -> bool:
        """Map what the event refers to; where that is gone, the stream is lost."""
        if event.ref is None:
            return True
        try:
            event.data = refs.read(event.ref)
        except OSError as error:
            logger.warning("request %s: a result cannot be read any more (%s)", stream.request_id, error)
            self.release(stream)
            stream.lose()
            return False
        stream.views.append(event.data)
        return True


def api_error(failed: m.Failed) -> ApiError:
    """The exception that becomes the HTTP answer of a Failed event."""
    headers = {"Retry-After": "1"} if failed.status in (429, 503) else None
    return ApiError(
        failed.status, failed.message, type=failed.type, param=failed.param, code=failed.code, headers=headers
    )
