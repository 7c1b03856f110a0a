"""Per request: choose a replica, send it there, hand its events out, send it once more if the replica dies unheard."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

import msgspec

from app.cluster import messages as m
from app.cluster.subscriber import Subscriber
from app.cluster.transport import new_context
from app.pipeline.connection import ReplicaLostError, Stream, api_error
from app.pipeline.graph import Graph, unavailable
from app.pipeline.pool import StagePool
from app.protocol.errors import ApiError
from app.settings.schema import Settings

T = TypeVar("T")
logger = logging.getLogger("app.pipeline")

CREDIT_WINDOW = 1 << 20
_CREDIT_STEP = CREDIT_WINDOW // 4
_ATTEMPTS = 2
_CALL_TIMEOUT_S = 60.0


class StageStatus(msgspec.Struct):
    """One stage as an API worker sees it."""

    stage_id: int
    name: str
    ready: bool
    replicas: list[m.ReplicaInfo]


class Orchestrator:
    """The API worker's side of the cluster: plain asyncio on the worker's loop, no thread, no polling."""

    def __init__(self, settings: Settings, registry: str) -> None:
        self._context = new_context()
        self._client_id = os.urandom(8).hex()
        token, policy = settings.master.token, settings.master.lb_policy
        self._graph = Graph(
            [StagePool(stage, self._context, self._client_id, token, policy) for stage in settings.stages]
        )
        self._subscriber = Subscriber(
            self._context, registry, token, self._client_id, self._on_membership, self._on_master_lost
        )
        self.master_lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._pinger: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._subscriber.connect()
        self._pinger = asyncio.create_task(self._ping(), name="ping replicas")

    def reconnect(self) -> None:
        """Subscribe to the master that replaced a lost one."""
        self.master_lost.clear()
        self._subscriber.connect()

    async def stop(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
            with suppress(asyncio.CancelledError):
                await self._pinger
        self._subscriber.close()
        for pool in self._graph.pools.values():
            pool.close()
        self._context.term()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(m.PING_PERIOD_S)
            for pool in self._graph.pools.values():
                pool.ping()

    # ------------------------------------------------------------------------------------------------ membership

    def _on_membership(self, membership: m.Membership) -> None:
        for stage_id, pool in self._graph.pools.items():
            pool.update([replica for replica in membership.replicas if replica.stage_id == stage_id])
        self._changed.set()

    def _on_master_lost(self) -> None:
        logger.error("the master process is gone, and the replicas on this host with it")
        for pool in self._graph.pools.values():
            pool.lose_local()
        self.master_lost.set()

    @property
    def ready(self) -> bool:
        """Every stage has a replica that takes requests."""
        return all(pool.ready for pool in self._graph.pools.values())

    async def wait_ready(self, limit_s: float) -> bool:
        """Wait until `ready` holds, at most `limit_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        return self.ready

    def status(self) -> list[StageStatus]:
        """All stages and replicas, from memory."""
        return [
            StageStatus(pool.stage.stage_id, pool.stage.name, pool.ready, [x.info for x in pool.connections])
            for pool in self._graph.pools.values()
        ]

    def capabilities(self) -> m.Capabilities:
        """What the pipeline can do: the entry stages taken together."""
        merged = m.Capabilities([], 0, [], [])
        for pool in self._graph.entries:
            own = pool.capabilities
            merged.tasks += [x for x in own.tasks if x not in merged.tasks]
            merged.input_modalities += [x for x in own.input_modalities if x not in merged.input_modalities]
            merged.output_modalities += [x for x in own.output_modalities if x not in merged.output_modalities]
            merged.max_model_len = max(merged.max_model_len, own.max_model_len)
        return merged

    # ------------------------------------------------------------------------------------------------ requests

    async def submit(
        self, kind: str, request_id: str, body: bytes, *, model: str = "", limit_s: float = 0.0
    ) -> RequestStream:
        """Send a request to a replica that answers `kind`; returns once its engine has accepted it.

        `limit_s`: seconds until the whole answer must be there, 0 for no limit.

        Raises:
            ApiError: the engine's refusal; 429 when every replica's queue is full, 503 when no replica is available,
                504 when the limit is over.
        """
        submit = m.Submit(request_id, kind, model, CREDIT_WINDOW)
        request = RequestStream(self._graph.entry_for(kind), submit, body, limit_s)
        await request.start()
        return request

    async def call(self, task: str, method: str, body: bytes) -> bytes:
        """Ask an engine that answers `task`; JSON in, JSON out.

        Raises:
            ApiError: the engine's refusal, 503 without a replica, 504 after a minute.
        """
        pool = self._graph.entry_for(task)
        connection = pool.pick(set())
        if connection is None:
            raise unavailable([pool.stage.name])
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                return await connection.call(method, body)
        except TimeoutError:
            raise ApiError(504, f"{method} took longer than {_CALL_TIMEOUT_S:g} s", code="timeout") from None
        except ReplicaLostError:
            raise unavailable([pool.stage.name]) from None


class _QueueFullError(Exception):
    """This replica takes no more; another one may."""


class _LeavingError(Exception):
    """This replica drains; it never started on the request."""


_PASSED_ON: dict[str, type[Exception]] = {m.QUEUE_FULL: _QueueFullError, m.REPLICA_LEAVES: _LeavingError}


class RequestStream:
    """The answer to one request: an async iterator of batches of events, which ends after Done.

    Iteration raises ApiError when the request fails. Always call `aclose`: it aborts what still runs.
    """

    def __init__(self, pool: StagePool, submit: m.Submit, body: bytes, limit_s: float) -> None:
        self._pool = pool
        self._limit_s = limit_s
        self._deadline = asyncio.get_running_loop().time() + limit_s if limit_s > 0 else None
        self._submit = submit
        self._body = body
        self._stream: Stream | None = None
        self._tried: set[tuple[str, int]] = set()
        self._waiting: list[m.AnyEvent] = []
        self._streamed = False
        self._finished = False
        self._owed = 0
        self._full = False

    async def start(self) -> None:
        """Send it and wait until an engine has accepted it; see Orchestrator.submit."""
        await self._in_time(self._open())

    async def _in_time(self, step: Awaitable[T]) -> T:
        if self._deadline is None:
            return await step
        try:
            async with asyncio.timeout_at(self._deadline):
                return await step
        except TimeoutError:
            await self.aclose()
            message = f"the answer was not complete within its time limit of {self._limit_s:g} s"
            raise ApiError(504, message, code="deadline_exceeded") from None

    async def _open(self) -> None:
        """Send it and wait for Accepted, on another replica if the first one dies."""
        while True:
            connection = self._pool.pick(self._tried) if len(self._tried) < _ATTEMPTS else None
            if connection is None:
                raise self._nobody()
            self._tried.add(connection.replica)
            self._stream = connection.submit(self._submit, self._body)
            try:
                await self._accepted(self._stream)
                self._owed = 0
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
            except BaseException:
                await self.aclose()
                raise

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
        return ApiError(503, "two replicas were lost while they served this request", code="replica_lost")

    async def _accepted(self, stream: Stream) -> None:
        first, *rest = await stream.next_batch()
        if isinstance(first, m.Failed):
            raise _PASSED_ON.get(first.code or "") or api_error(first)
        assert isinstance(first, m.Accepted), first
        self._waiting = rest

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        if self._finished:
            raise StopAsyncIteration
        self._return_credit()
        events = await self._in_time(self._next())
        self._owed += sum(map(m.cost, events))
        last = events[-1]
        if isinstance(last, m.Done | m.Failed):
            self._finished = True
            await self.aclose()
            if isinstance(last, m.Done):
                return events
            if len(events) == 1:
                raise api_error(last)
            self._waiting, self._finished = [last], False
            return events[:-1]
        return events

    async def _next(self) -> list[m.AnyEvent]:
        while not self._waiting:
            assert self._stream is not None
            try:
                self._waiting = await self._stream.next_batch()
            except ReplicaLostError:
                if self._streamed or len(self._tried) >= _ATTEMPTS:
                    raise self._lost() from None
                await self._open()
        events, self._waiting = self._waiting, []
        self._streamed = True
        return events

    def _return_credit(self) -> None:
        """Who asks for the next batch has sent the last one to the HTTP client."""
        if self._owed >= _CREDIT_STEP and self._stream is not None and not self._stream.ended:
            self._stream.connection.credit(self._submit.request_id, self._owed)
            self._owed = 0

    def _lost(self) -> ApiError:
        if self._streamed:
            return ApiError(503, "the replica that served this request was lost", code="replica_lost")
        return self._nobody()

    async def aclose(self) -> None:
        """Abort the request if it still runs; may be called again."""
        if self._stream is not None:
            self._stream.connection.release(self._stream)
