"""A loaded talker that answers requests: from the body of a task and the thinker's tensors to codec ids."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from app.cluster.messages import Accepted, Done, Failed, Usage
from app.engines.base import EngineError, Request
from app.engines.llm.errors import engine_dead, refusal
from app.engines.omni.talker.judge import judge
from app.engines.omni.talker.room import Room
from app.engines.omni.talker.session import Session
from app.engines.omni.talker.supply import Supply
from app.engines.omni.torchtensors import from_torch
from app.engines.refusal import refuse
from app.protocol.speechtask import decode_task

if TYPE_CHECKING:
    from app.engines.llm.frontend import Frontend
    from app.engines.omni.talker.family import TalkerFamily, Utterance

TASKS = ("talk",)


class Service:
    """`defaults` are the sampling parameters of requests that say nothing else."""

    def __init__(self, frontend: Frontend, family: TalkerFamily, defaults: Mapping[str, Any]) -> None:
        self._frontend = frontend
        self._family = family
        self._defaults = defaults
        self._numbers = count()
        cache = frontend.vllm_config.cache_config
        self._room = Room(cache.num_gpu_blocks - 1, cache.block_size)  # one is vLLM's own
        self._sessions: set[Session] = set()

    @property
    def queued(self) -> int:
        """Sessions that begin when others have ended."""
        return sum(session.queued for session in self._sessions)

    @property
    def active(self) -> int:
        """Sessions that vLLM has something to do for; those that wait for their thinker are none."""
        return sum(session.active for session in self._sessions)

    async def answer(self, request: Request) -> None:
        """Serve one "talk" request to its end.

        Raises:
            EngineError: it is refused or failed.
        """
        if request.kind not in TASKS:
            raise EngineError(Failed(400, f"a talker does not serve {request.kind!r}", "invalid_request_error"))
        try:
            task = decode_task(request.body)
        except msgspec.DecodeError as error:
            refuse(f"the task is malformed: {error}", None)
        voice, sampling = judge(task, self._family.card, self._defaults)
        name = f"{request.request_id}-{next(self._numbers)}"
        utterance = self._family.begin(name, voice)
        stops, own = self._family.stop_token_ids, utterance.extra_args
        session = Session(self._frontend, self._room, name, sampling, stops, own)
        self._sessions.add(session)
        request.emit(Accepted())
        try:
            codes = await _talk(request, session, utterance)
        except Exception as error:
            if self._frontend.errored:
                raise engine_dead() from error
            raise refusal(error, prompt="messages") from error
        finally:
            self._sessions.discard(session)
            utterance.close()
        request.emit(Usage(0, codes))
        request.emit(Done())


async def _talk(request: Request, session: Session, utterance: Utterance) -> int:
    """How many codes, or frames of codes, were handed on."""
    made = 0
    async with Supply(request, utterance) as supply, aclosing(session.sampled(supply)) as sampled:
        async for token_ids in sampled:
            codes = await utterance.codes(token_ids)
            if codes is not None:
                made += len(codes)
                request.emit_tensors({"codes": from_torch(codes)})
            await request.ready()
    return made
