"""The API worker's side of the cluster: what the master tells of the replicas, and whom to ask for what."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from app.cluster import messages as m
from app.cluster.access import access_of
from app.cluster.subscriber import Subscriber
from app.cluster.transport import new_context
from app.pipeline.alignment import AlignedStream
from app.pipeline.expansion import ExpandedStream, question
from app.pipeline.graph import Graph, unavailable
from app.pipeline.pool import Holder, StagePool
from app.pipeline.request import CREDIT_WINDOW, RequestStream
from app.pipeline.speaking import TALK, Spoken, kinds_behind, spoken_answer
from app.protocol.aligning import AlignTaskOf
from app.protocol.errors import ApiError
from app.protocol.pictures import decode_task
from app.settings.schema import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.requests import RequestMeter, StageMeter

logger = logging.getLogger("app.pipeline")

_CALL_TIMEOUT_S = 60.0
_MASTER_TIMEOUT_S = 10.0


class StageStatus(msgspec.Struct):
    """One stage as an API worker sees it."""

    stage_id: int
    name: str
    ready: bool
    replicas: list[m.ReplicaInfo]


class Orchestrator:
    """The API worker's side of the cluster: plain asyncio on the worker's loop, no thread, no polling."""

    def __init__(self, settings: Settings, registry: str, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or Metrics()
        self._model_names = settings.served_model_names
        self.membership = m.Membership(0, 0, [])
        self._context = new_context()
        self._client_id = os.urandom(8).hex()
        access = access_of(settings.master)
        self._graph = Graph([StagePool(stage, self._context, self._client_id, access) for stage in settings.stages])
        self._subscriber = Subscriber(
            self._context, registry, access, self._client_id, self._on_membership, self._on_master_lost
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

    def discard(self) -> None:
        """Give up one that has not been started, or has been stopped."""
        self._context.term()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(m.PING_PERIOD_S)
            for pool in self._graph.pools.values():
                pool.ping()

    # ------------------------------------------------------------------------------------------------ membership

    def _on_membership(self, membership: m.Membership) -> None:
        self.membership = membership
        asleep = dict(membership.asleep)
        for stage_id, pool in self._graph.pools.items():
            pool.asleep = stage_id in asleep
            pool.update([replica for replica in membership.replicas if replica.stage_id == stage_id])
        self._changed.set()

    def _on_master_lost(self) -> None:
        logger.error("the master process is gone, and the replicas on this host with it")
        self.membership = m.Membership(0, 0, [])
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

    def in_flight(self) -> list[tuple[m.ReplicaInfo, int]]:
        """How many requests of this API worker each replica has."""
        return [(x.info, x.in_flight) for pool in self._graph.pools.values() for x in pool.connections]

    def capabilities(self) -> m.Capabilities:
        """What the pipeline can do: the entry stages taken together, with what the stages behind them make."""
        return self._graph.capabilities()

    @property
    def known(self) -> bool:
        """Whether that is all of it: an API worker learns what a stage can do when it first sees a replica of it."""
        return self._graph.known

    # ------------------------------------------------------------------------------------------------ requests

    async def submit(
        self,
        kind: str,
        request_id: str,
        body: bytes,
        *,
        model: str = "",
        task: str = "",
        instance: str = "",
        limit_s: float = 0.0,
        streamed: bool = False,
        whole: bool = False,
    ) -> RequestStream:
        """Send a request to a replica that answers `kind`; returns once its engine has accepted it.

        `task`: what the replica has to be able to do, where that is not `kind`. `instance`: the one engine that can
        answer (Capabilities.instance), "" for any.
        `limit_s`: seconds until the whole answer must be there, 0 for no limit. `streamed`: the client gets the answer
        in pieces, so that their times are of interest. `whole`: it is used when it is complete, and not before.

        Raises:
            ApiError: the engine's refusal; 404 when `instance` is gone, 429 when every replica's queue is full, 503
                when no replica is available, 504 when the limit is over.
        """
        submit = m.Submit(request_id, kind, model, CREDIT_WINDOW)
        pool = self._graph.entry_for(task or kind)
        target = self._holder(pool, instance) if instance else pool
        request = RequestStream(target, submit, body, limit_s, self._meter(pool, model, streamed), whole=whole)
        await request.start()
        return request

    async def speak(
        self,
        request_id: str,
        body: bytes,
        speech: bytes,
        *,
        model: str = "",
        limit_s: float = 0.0,
        streamed: bool = False,
    ) -> Spoken:
        """Send a chat to its stage and the task `speech` to those behind it; `body` is the chat without that.

        Returns once all have accepted; arguments and errors are those of `submit`.
        """
        plan = self._graph.route("chat", ("audio",))
        chat = m.Submit(request_id, "chat", model, CREDIT_WINDOW, tensors=plan.chained)
        streams = [self._part(plan.first, chat, body, limit_s)]
        for pool, kind in zip(plan.pools[1:], kinds_behind(plan), strict=True):
            submit = m.Submit(request_id, kind, "", CREDIT_WINDOW, tensors=kind == TALK)
            streams.append(self._part(pool, submit, speech, limit_s))
        spoken = spoken_answer(plan, streams, self._meter(plan.first, model, streamed))
        await spoken.start()
        return spoken

    async def expand(
        self, kind: str, request_id: str, body: bytes, *, model: str = "", limit_s: float = 0.0, streamed: bool = False
    ) -> ExpandedStream:
        """Have the prompt of the picture task `body` written by the stage before the one that answers `kind`.

        Returns once the picture stage has accepted it; arguments and errors are those of `submit`.
        """
        text, (edge,) = self._graph.route(kind)
        picture = edge.target
        left_s = _left(limit_s)

        def draw(task: bytes) -> RequestStream:
            return self._part(picture, m.Submit(request_id, kind, model, CREDIT_WINDOW), task, left_s())

        asked = question(picture.stage.prompt_template, decode_task(body))
        expanded = ExpandedStream(
            self._part(text, m.Submit(request_id, "chat", "", CREDIT_WINDOW), asked, limit_s),
            draw,
            body,
            self._meter(picture, model, streamed),
            timeout_s=edge.timeout_s,
        )
        await expanded.start()
        return expanded

    async def align(
        self, kind: str, request_id: str, body: bytes, task_of: AlignTaskOf, *, model: str = "", limit_s: float = 0.0
    ) -> AlignedStream:
        """Send a request to a replica that answers `kind`, and what comes of it to the aligner; see AlignedStream.

        Returns once the first has accepted it; arguments and errors are those of `submit`.
        """
        first, aligner = self._graph.entry_for(kind), self._graph.aligner
        if aligner is None or not aligner.ready:
            raise unavailable(["aligner"])
        left_s = _left(limit_s)

        def times(task: bytes) -> RequestStream:
            return self._part(aligner, m.Submit(request_id, "align", "", CREDIT_WINDOW), task, left_s())

        part = self._part(first, m.Submit(request_id, kind, model, CREDIT_WINDOW), body, limit_s)
        aligned = AlignedStream(part, times, task_of, self._meter(first, model, streamed=False))
        await aligned.start()
        return aligned

    @property
    def aligns(self) -> bool:
        """Whether a forced aligner belongs to the pipeline, whether it is up just now or not."""
        return self._graph.aligner is not None

    def expands(self, kind: str) -> bool:
        """Whether another stage writes the prompts of such requests."""
        return self._graph.expands(kind)

    @property
    def speaks(self) -> bool:
        """Whether a chat can be answered in sound, whoever is up just now."""
        return self._graph.speaks

    def positions(self, task: str, *modalities: str) -> list[int]:
        """Which places the stages of such a request have in the pipeline, in the order in which it passes them.

        Raises:
            ApiError: as Graph.route.
        """
        pools = self._graph.route(task, modalities).pools
        return [list(self._graph.pools).index(pool.stage.stage_id) for pool in pools]

    def _part(self, pool: StagePool, submit: m.Submit, body: bytes, limit_s: float) -> RequestStream:
        """One stage of a request that several work on."""
        return RequestStream(pool, submit, body, limit_s, StageMeter(self._metrics, pool.stage.stage_id))

    def _meter(self, pool: StagePool, model: str, streamed: bool) -> RequestMeter:
        label = model if model in self._model_names else self._model_names[0]
        return RequestMeter(self._metrics, label, pool.stage.stage_id, streamed=streamed)

    def holds(self, task: str, instance: str) -> bool:
        """Whether a replica that answers `task` runs the engine of that name (Capabilities.instance)."""
        return self._graph.entry_for(task).holder(instance) is not None

    @staticmethod
    def _holder(pool: StagePool, instance: str) -> Holder:
        connection = pool.holder(instance)
        if connection is None:
            raise ApiError(404, "the replica that held what this request refers to is gone", code="not_held")
        return Holder(pool, connection)

    async def call_stage(self, task: str, method: str, arguments: bytes) -> list[bytes | BaseException]:
        """Ask every replica that answers `task`: its answer, or the exception in its place.

        Raises:
            ApiError: 404, no stage answers `task`; 503, none of its replicas is there.
        """
        stage_id = self._graph.stage_for(task).stage.stage_id
        return [answer for _, answer in await self.call_replicas(stage_id, method, arguments)]

    async def call_replicas(
        self, stage_id: int, method: str, arguments: bytes
    ) -> list[tuple[m.ReplicaInfo, bytes | BaseException]]:
        """Ask every replica of a stage: its answer, or the exception in its place.

        Raises:
            ApiError: 503, none of its replicas is there.
        """
        pool = self._graph.pools[stage_id]
        connections = [connection for connection in pool.connections if connection.accepts]
        if not connections:
            raise unavailable([pool.stage.name])
        calls = (asyncio.wait_for(connection.call(method, arguments), _CALL_TIMEOUT_S) for connection in connections)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [(connection.info, answer) for connection, answer in zip(connections, answers, strict=True)]

    def tasks(self) -> dict[int, list[str]]:
        """What each stage can do, as far as a replica of it has told, by stage id."""
        return {stage_id: pool.capabilities.tasks for stage_id, pool in self._graph.pools.items()}

    def stage_of(self, task: str) -> int:
        """The stage that answers `task`.

        Raises:
            ApiError: 404, none does; 503 while that is not known.
        """
        return self._graph.stage_for(task).stage.stage_id

    def card_of(self, task: str) -> str:
        """What the stage that answers `task` tells of itself, as JSON; errors are those of `stage_of`."""
        return self._graph.stage_for(task).capabilities.card

    def voice_card(self) -> str:
        """What the stage that has the voices tells of them: a SpeechCard, as JSON.

        Raises:
            ApiError: 404, the served model does not speak; 503 while that is not known.
        """
        return self._graph.voice().capabilities.card

    def inputs_of(self, task: str) -> list[str]:
        """The modalities that the stage which answers `task` takes, in OpenAI's words.

        Raises:
            ApiError: 404, none does; 503 while that is not known.
        """
        return self._graph.stage_for(task).capabilities.input_modalities

    async def tell_master(self, message: m.Message, took_effect: Callable[[m.Membership], bool]) -> None:
        """Tell the master something and wait until its next word to everybody shows that it took effect.

        Raises:
            ApiError: 503, the master is silent.
        """
        self._subscriber.tell(message)
        try:
            async with asyncio.timeout(_MASTER_TIMEOUT_S):
                while not took_effect(self.membership):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ApiError(503, "the master process does not answer; try again shortly", code="no_master") from None

    async def call_all(self, method: str, limit_s: float) -> list[tuple[m.ReplicaInfo, bytes | Exception]]:
        """Ask every live replica at once: its answer, or TimeoutError after `limit_s`, or why there is none."""
        connections = [connection for pool in self._graph.pools.values() for connection in pool.connections]
        answers = await asyncio.gather(
            *(asyncio.wait_for(connection.call(method, b"{}"), limit_s) for connection in connections),
            return_exceptions=True,
        )
        return [(x.info, y) for x, y in zip(connections, answers, strict=True) if isinstance(y, bytes | Exception)]


def _left(limit_s: float) -> Callable[[], float]:
    """Tells how much of a time limit, which begins now, is left for another stage; 0: there is none."""
    until = asyncio.get_running_loop().time() + limit_s
    return lambda: max(0.001, until - asyncio.get_running_loop().time()) if limit_s else 0.0
