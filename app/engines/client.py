"""A replica's view of one API worker: its running requests, its credit, and its outgoing events.

All events of one turn of the event loop leave as one message (one message per token costs twice the CPU).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from functools import partial

import msgspec

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.cluster.transport import Channel
from app.engines.backlog import Backlog
from app.engines.base import Engine, EngineError
from app.engines.outflow import Outflow
from app.engines.tensors import Exchange

logger = logging.getLogger("app.replica")

MAX_WAITING = 8 << 20
"""Bytes of appended input that may wait until the engine reads them."""


class ClientRequest:
    """One request of one client; implements app.engines.base.Request."""

    def __init__(self, client: Client, submit: m.Submit, body: bytes) -> None:
        self.request_id = submit.request_id
        self.kind = submit.kind
        self.model = submit.model
        self.body = body
        self.wants_tensors = submit.tensors
        self.task: asyncio.Task[None] | None = None
        self._client = client
        self._takes_refs = submit.refs
        self._credit = submit.credit
        self._funded = asyncio.Event()
        self._funded.set()
        self._held = Backlog()
        self._broke_since = 0.0
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._used = 0
        self._reading = False
        self._gathered: deque[dict[str, Tensor]] | None = None
        self._outflow: Outflow | None = None
        self._done: m.Done | None = None

    def append(self, data: bytes, *, last: bool) -> bool:
        """Take more input; False if too much of it waits already."""
        self._waiting += len(data)
        if self._waiting > MAX_WAITING:
            return False
        if data:
            self._inputs.put_nowait(data)
        if last:
            self._inputs.put_nowait(None)
        return True

    async def next_input(self) -> bytes | None:
        """The next appended input; None after the last one."""
        if self._reading:
            self._reading = False
            self._used += 1
            self._client.enqueue(self.request_id, m.Consumed(self._used))
        data = await self._inputs.get()
        self._reading = data is not None
        self._waiting -= len(data or b"")
        return data

    async def next_tensors(self) -> dict[str, Tensor] | None:
        """The next appended tensors; None after the last ones."""
        if not self._client.exchange.whole:
            return await self._read_tensors()
        if self._gathered is None:
            self._gathered = deque()
            while (tensors := await self._read_tensors()) is not None:
                self._gathered.append(tensors)
        return self._gathered.popleft() if self._gathered else None

    async def _read_tensors(self) -> dict[str, Tensor] | None:
        packed = await self.next_input()
        return None if packed is None else await self._client.exchange.read(packed)

    def emit_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Hand tensors to the next stage; see app.engines.base.Request."""
        if not self._client.runs(self):
            return
        if self._outflow is None:
            client, send = self._client, partial(self._client.enqueue, self.request_id)
            self._outflow = Outflow(client.exchange, client.identity, self.request_id, send)
        self._outflow.put(tensors)

    def emit(self, event: m.AnyEvent) -> None:
        """Send the event; while the client has no credit, hold it and let text of one choice grow together."""
        if self._outflow is not None and self._outflow.waits and isinstance(event, m.Done):
            self._done = event
        elif self._credit > 0:
            self._send(event)
        else:
            self._held.push(event)

    def use_tensors(self, through: int) -> None:
        """The next stage has used this request's Tensors events up to that number."""
        if self._outflow is None:
            return
        self._outflow.use(through)
        if self._done is not None and not self._outflow.waits:
            done, self._done = self._done, None
            self.emit(done)

    def drop(self) -> None:
        """Nobody waits for what it makes."""
        if self._outflow is not None:
            self._outflow.drop()

    @property
    def waits(self) -> bool:
        """It has events that cannot be sent yet."""
        return bool(self._held) or self._done is not None

    def _send(self, event: m.AnyEvent) -> None:
        self._credit -= m.cost(event)
        if self._credit <= 0:
            self._broke_since = time.monotonic()
            self._funded.clear()
        if self._takes_refs and isinstance(event, m.Media):
            event = self._client.by_ref(self, event)
        self._client.enqueue(self.request_id, event)

    async def ready(self) -> None:
        """Wait until the client has credit, and the next stage takes more tensors."""
        if self._credit <= 0:
            await self._funded.wait()
        if self._outflow is not None:
            await self._outflow.ready()

    def starved_for(self) -> float:
        """Seconds for which events have been held back because the client does not read."""
        return time.monotonic() - self._broke_since if self._held or not self._funded.is_set() else 0.0

    def add_credit(self, amount: int) -> None:
        self._credit += amount
        if self._credit <= 0:
            return
        self._funded.set()
        for event in self._held.take_all():
            self.emit(event)  # held again where this credit is used up too


class Client:
    """An API worker, known by its identity. What it asked for is cancelled when it is gone."""

    def __init__(self, identity: bytes, channel: Channel, engine: Engine, exchange: Exchange) -> None:
        self.seen = time.monotonic()
        self.requests: dict[str, ClientRequest] = {}
        self.identity = identity
        self.exchange = exchange
        self._channel = channel
        self._engine = engine
        self._refs = exchange.refs
        self._outbox: list[tuple[str, m.AnyEvent]] = []

    def submit(self, submit: m.Submit, body: bytes, refuse: m.Failed | None) -> None:
        """Start a request, or answer with the refusal."""
        if refuse is not None:
            self.enqueue(submit.request_id, refuse)
            return
        request = ClientRequest(self, submit, body)
        self.requests[submit.request_id] = request
        request.task = asyncio.create_task(self._run(request), name=submit.request_id)

    async def _run(self, request: ClientRequest) -> None:
        try:
            await self._engine.run(request)
        except EngineError as error:
            request.emit(error.failed)
        except Exception as error:
            logger.exception("request %s failed", request.request_id)
            request.emit(m.Failed(500, f"{type(error).__name__} in the engine; see the server's log"))
        finally:
            request.task = None  # else the two hold each other, and what was mapped stays until they are collected
            self._forget(request)

    def _forget(self, request: ClientRequest) -> None:
        """A finished request stays while events of it are held back."""
        if self.runs(request) and not request.waits:
            request.drop()
            del self.requests[request.request_id]

    def abort(self, request_id: str) -> None:
        request = self.requests.pop(request_id, None)
        if request is not None:
            request.drop()
            if request.task is not None:
                request.task.cancel()
        self.release(request_id)

    def runs(self, request: ClientRequest) -> bool:
        """Whether somebody still waits for it."""
        return self.requests.get(request.request_id) is request

    def append(self, request_id: str, data: bytes, *, last: bool) -> None:
        """More input for a request; for one that has ended it is too late, which is no mistake."""
        request = self.requests.get(request_id)
        if request is not None and not request.append(data, last=last):
            self.abort(request_id)
            message = f"more than {MAX_WAITING >> 20} MiB of input wait to be read; send it more slowly"
            self.enqueue(request_id, m.Failed(413, message, "invalid_request_error", code="input_too_large"))

    def release(self, request_id: str, through: int | None = None) -> None:
        """What this request referred to, up to Tensors event `through`, has been read or will not be."""
        self._refs.release(self.identity, request_id, through)
        request = self.requests.get(request_id)
        if request is None or through is None:
            return
        request.use_tensors(through)
        if request.task is None:
            self._forget(request)

    def fail_all(self, failed: m.Failed) -> None:
        """End everything that runs with this error."""
        for request_id in list(self.requests):
            self.abort(request_id)
            self.enqueue(request_id, failed)

    def cancel_all(self) -> None:
        for request_id in list(self.requests):
            self.abort(request_id)
        self._refs.drop(self.identity)
        self._outbox.clear()

    def expire(self) -> None:
        """Cancel everything of a client that has fallen silent; if it was only stopped, it learns of it later."""
        message = f"the API worker of this request was silent for {m.CLIENT_LEASE_S:g} s"
        self.fail_all(m.Failed(503, message, "service_unavailable_error", code=m.REPLICA_LOST))
        self._refs.drop(self.identity)

    def credit(self, request_id: str, amount: int) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        request.add_credit(amount)
        if request.task is None:
            self._forget(request)

    def end_slow_readers(self, limit_s: float) -> None:
        """Abort requests whose HTTP client has not read for `limit_s` seconds."""
        for request_id, request in list(self.requests.items()):
            if request.starved_for() > limit_s:
                self.abort(request_id)
                message = f"the client did not read its answer for {limit_s:g} s (--slow-client-timeout)"
                self.enqueue(request_id, m.Failed(408, message, "timeout_error", code="slow_client"))

    def by_ref(self, request: ClientRequest, event: m.Media) -> m.Media:
        """The event with a ref in the place of large data, if there is room, and somebody who will release it."""
        if not self.runs(request):
            return event
        ref = self._refs.put(self.identity, request.request_id, event.data)
        return msgspec.structs.replace(event, data=memoryview(b""), ref=ref) if ref else event

    def enqueue(self, request_id: str, event: m.AnyEvent) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((request_id, event))

    def _flush(self) -> None:
        items, self._outbox = self._outbox, []
        if items:
            self._channel.send([self.identity, m.encode(m.Events(items))])
