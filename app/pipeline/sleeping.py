"""Putting stages to sleep and waking them: the master knows of it first, so that no API worker sends requests there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from app.cluster.messages import Membership, SetAsleep
from app.pipeline.connection import ReplicaLostError
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from app.protocol.sleep import TASK, Acknowledgement, SleepAnswer, SleepOrder, SleepReport, SleepRequest, WakeRequest

_decode = msgspec.json.Decoder(SleepReport).decode


async def sleep(orchestrator: Orchestrator, asked: SleepRequest) -> SleepAnswer:
    """Put stages to sleep; returns when every replica of theirs has given its memory back.

    Raises:
        ApiError: 400, one cannot sleep, or there is no such stage; then none of them sleeps that was awake.
    """
    stages = _stages(orchestrator, asked.stage_ids)
    awake = [stage for stage in stages if stage not in dict(orchestrator.membership.asleep)]
    order = msgspec.json.encode(SleepOrder(asked.level, asked.mode))
    await _record(orchestrator, stages, asked.level)
    try:
        acks = [ack for stage in stages for ack in await _tell(orchestrator, stage, "sleep", order)]
    except BaseException:  # also where the administrator has left: nobody would wake them
        if awake:
            with suppress(ApiError):
                await asyncio.shield(wake_up(orchestrator, WakeRequest(awake)))
        raise
    return SleepAnswer("SUCCESS", acks)


async def wake_up(orchestrator: Orchestrator, asked: WakeRequest) -> SleepAnswer:
    """Wake stages; returns when every replica of theirs takes requests again.

    Raises:
        ApiError: 400, there is no such stage; what a replica says that cannot wake.
    """
    asleep = dict(orchestrator.membership.asleep)
    stages = [stage for stage in _stages(orchestrator, asked.stage_ids) if stage in asleep]
    if not stages:
        return SleepAnswer("SKIPPED")
    acks = [ack for stage in stages for ack in await _tell(orchestrator, stage, "wake_up", b"{}")]
    await _record(orchestrator, stages, 0)
    return SleepAnswer("SUCCESS", acks)


def _stages(orchestrator: Orchestrator, asked: list[int] | None) -> list[int]:
    able = {stage: TASK in tasks for stage, tasks in orchestrator.tasks().items()}
    for position, stage in enumerate(asked or ()):
        if stage not in able:
            known = ", ".join(map(str, sorted(able)))
            raise _refused(f"there is no stage {stage}; stages are {known}", f"stage_ids[{position}]")
        if not able[stage]:
            message = f"stage {stage} cannot sleep: start it with --enable-sleep-mode (text and picture stages have it)"
            raise _refused(message, f"stage_ids[{position}]")
    found = sorted(set(asked)) if asked else [stage for stage, can in able.items() if can]
    if not found:
        raise _refused("no stage of this server can sleep: start it with --enable-sleep-mode", "stage_ids")
    return found


async def _record(orchestrator: Orchestrator, stages: Iterable[int], level: int) -> None:
    for stage in stages:

        def known(membership: Membership, stage: int = stage) -> bool:
            return dict(membership.asleep).get(stage, 0) == level

        await orchestrator.tell_master(SetAsleep(stage, level), known)


async def _tell(orchestrator: Orchestrator, stage: int, method: str, arguments: bytes) -> list[Acknowledgement]:
    acks = []
    for info, answer in await orchestrator.call_replicas(stage, method, arguments):
        if isinstance(answer, bytes):
            acks.append(Acknowledgement(stage, info.host, info.pid, _decode(answer).freed_bytes))
        elif isinstance(answer, TimeoutError):
            raise ApiError(504, f"a replica of stage {stage} took too long to {method}", code="timeout")
        elif not isinstance(answer, ReplicaLostError | asyncio.CancelledError):  # a lost one has no memory any more
            raise answer
    return acks


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}.", param=param, code="invalid_value")
