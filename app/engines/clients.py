"""The data channel of a replica: every API worker that asks it for something, and who is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec
import zmq

from app.cluster import messages as m
from app.cluster import pull
from app.cluster.identity import host_identity
from app.cluster.refs import RefStore
from app.cluster.tensors import Source
from app.cluster.transport import Channel, Frames
from app.engines.base import Engine, EngineError
from app.engines.client import Client
from app.engines.tensors import Exchange
from app.protocol.sleep import ASLEEP, SleepOrder
from app.settings.schema import StageConfig

logger = logging.getLogger("app.replica")

_QUIET_S = 0.02
"""How often an engine that shall sleep is asked whether it still works."""


class Clients:
    """All clients of one replica. `slots` is how many requests its engine runs at once, known after its start."""

    def __init__(self, engine: Engine, stage: StageConfig, state: Callable[[], m.ReplicaState]) -> None:
        self.slots = 0
        self._engine = engine
        self._stage = stage
        self._state = state
        self._refs = RefStore(stage.shm_threshold_bytes)
        self._clients: dict[bytes, Client] = {}
        self._asleep = False
        self._calls: set[asyncio.Task[None]] = set()

    def listen(self, socket: zmq.Socket[bytes], address: str, puller: pull.Puller) -> Channel:
        """Serve the clients that come to this socket, and the replicas that pull, which reach it at `address`."""
        self._puller = puller
        source = Source(self._stage.name, host_identity(), address)
        self._exchange = Exchange(self._refs, source, puller, whole=not self._stage.async_chunk)
        self._channel = Channel(socket, self._on_message)
        return self._channel

    @property
    def held(self) -> int:
        """Bytes held for others."""
        return self._refs.size

    @property
    def busy(self) -> bool:
        """Requests of somebody run, or their last events wait for credit, or to be read."""
        return len(self._refs) > 0 or any(client.requests for client in self._clients.values())

    def _on_message(self, frames: Frames) -> None:
        identity = frames[0].bytes
        message = m.decode_data(frames[1].buffer)
        if isinstance(message, m.Pull):
            self._channel.send([identity, *pull.answer(self._refs, message)])
            return
        client = self._clients.get(identity)
        if client is None:
            client = self._clients[identity] = Client(identity, self._channel, self._engine, self._exchange)
        client.seen = time.monotonic()
        match message:
            case m.Submit() as submit:
                client.submit(submit, _bulk(frames), refuse=self._refusal() or self._queue_full())
            case m.Append(request_id, last):
                client.append(request_id, _bulk(frames), last=last)
            case m.Abort(request_id):
                client.abort(request_id)
            case m.Release(request_id, through):
                client.release(request_id, through)
            case m.Credit(request_id, amount):
                client.credit(request_id, amount)
            case m.Call() as call:
                task = asyncio.create_task(self._answer(identity, call, _bulk(frames)))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
            case m.Ping():
                pass

    # ------------------------------------------------------------------------------------------------ refusing

    def _refusal(self) -> m.Failed | None:
        state = self._state()
        if self._asleep:
            return m.Failed(503, f"stage {self._stage.name} sleeps", "service_unavailable_error", code=ASLEEP)
        if state == "up":
            return None
        return m.Failed(503, f"this replica is {state}", "service_unavailable_error", code=m.REPLICA_LEAVES)

    def _queue_full(self) -> m.Failed | None:
        limit = self.slots + self._stage.max_queue
        if not self.slots or sum(len(client.requests) for client in self._clients.values()) < limit:
            return None
        waiting = limit - self.slots
        message = f"stage {self._stage.name} is busy: {self.slots} requests run, {waiting} wait; try again later"
        return m.Failed(429, message, "rate_limit_error", code=m.QUEUE_FULL)

    # ------------------------------------------------------------------------------------------------ calls

    async def _answer(self, identity: bytes, call: m.Call, arguments: bytes) -> None:
        failed = None if self._asleep else self._refusal()
        result = b""
        if failed is None:
            try:
                if call.method == "sleep":
                    await self._fall_asleep(arguments)
                result = await self._engine.call(call.method, arguments)
                if call.method == "wake_up":
                    self._asleep = False
            except EngineError as error:
                failed = error.failed
            except Exception as error:
                logger.exception("call %s failed", call.method)
                failed = m.Failed(500, f"{type(error).__name__} in the engine; see the server's log")
            self._asleep = self._asleep and not (call.method == "sleep" and failed)
        frame = m.encode(m.Result(call.call_id, failed))
        self._channel.send([identity, frame] if failed else [identity, frame, result])

    async def _fall_asleep(self, arguments: bytes) -> None:
        """Take no requests any more, and end those that run, or wait for their end (bounded by the caller)."""
        order = msgspec.json.decode(arguments, type=SleepOrder)
        self._asleep = True
        if order.mode == "abort":
            failed = m.Failed(
                503, f"stage {self._stage.name} was put to sleep", "service_unavailable_error", code=ASLEEP
            )
            for client in self._clients.values():
                client.fail_all(failed)
        while self.busy or self._engine.load().running:  # noqa: ASYNC110 - bounded by the caller
            await asyncio.sleep(_QUIET_S)

    # ------------------------------------------------------------------------------------------------ letting go

    def drop(self, identity: bytes) -> None:
        """This client is dead: cancel what it asked for."""
        client = self._clients.pop(identity, None)
        if client is not None:
            client.cancel_all()

    def tidy(self, unheard_s: float, slow_client_timeout: float) -> None:
        """Let go of clients that were silent too long, not counting `unheard_s`, and of readers that do not read."""
        self._refs.expire()
        now = time.monotonic()
        for identity, client in list(self._clients.items()):
            client.seen += unheard_s
            client.end_slow_readers(slow_client_timeout)
            if client.seen < now - m.CLIENT_LEASE_S:
                client.expire()
                del self._clients[identity]

    def cancel_all(self) -> None:
        """The replica leaves: cancel everything."""
        for client in self._clients.values():
            client.cancel_all()
        for call in self._calls:
            call.cancel()
        self._puller.close()
        self._refs.close()


def _bulk(frames: Frames) -> bytes:
    """The frame behind the message, if there is one."""
    return frames[2].bytes if len(frames) > 2 else b""
