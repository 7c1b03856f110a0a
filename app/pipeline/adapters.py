"""Loading and unloading LoRA adapters on every replica of the stage that takes them, and remembering which."""

from __future__ import annotations

import asyncio

import msgspec

from app.cluster import messages as m
from app.pipeline.connection import ReplicaLostError
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError

TASK = "adapters"


async def load_adapter(orchestrator: Orchestrator, name: str, path: str, *, is_3d: bool, replace: bool) -> None:
    """Load it everywhere or nowhere; replicas that start later load it as well.

    Raises:
        ApiError: 400, it cannot be loaded; 404, the served model takes no adapters.
    """
    adapter = m.Adapter(orchestrator.stage_of(TASK), name, path, is_3d)
    arguments = msgspec.json.encode(adapter)
    answers = await orchestrator.call_stage(TASK, "replace_adapter" if replace else "load_adapter", arguments)
    try:
        _raise_failure(answers)
    except ApiError:
        if not replace:
            await orchestrator.call_stage(TASK, "unload_adapter", arguments)
        raise
    await orchestrator.tell_master(m.KeepAdapter(adapter), lambda membership: adapter in membership.adapters)


async def unload_adapter(orchestrator: Orchestrator, name: str) -> None:
    """Unload it everywhere.

    Raises:
        ApiError: 404, there is no such adapter, or the served model takes none.
    """
    stage_id = orchestrator.stage_of(TASK)
    if all(adapter.name != name for adapter in orchestrator.membership.adapters):
        raise ApiError(404, f"There is no LoRA adapter {name!r} here.", param="lora_name", code="adapter_not_found")
    await orchestrator.tell_master(
        m.DropAdapter(stage_id, name), lambda membership: all(adapter.name != name for adapter in membership.adapters)
    )
    # The master tells every replica, too; waiting for them here means that the name is gone when this is answered.
    await orchestrator.call_stage(TASK, "unload_adapter", msgspec.json.encode(m.Adapter(stage_id, name, "")))


def _raise_failure(answers: list[bytes | BaseException]) -> None:
    """A replica that was lost meanwhile loads the adapter when it is back."""
    for answer in answers:
        if isinstance(answer, TimeoutError):
            raise ApiError(504, "a replica took too long to load the adapter", code="timeout")
        if isinstance(answer, BaseException) and not isinstance(answer, ReplicaLostError | asyncio.CancelledError):
            raise answer
