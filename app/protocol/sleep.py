"""Stages that give their memory back while nobody needs them: what is asked of them, and what each replica answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SleepLevel = Annotated[int, msgspec.Meta(ge=1, le=2)]
SleepMode = Literal["abort", "wait"]
"""What becomes of requests that run: they fail, or they finish first."""

TASK = "sleep"
"""In Capabilities.tasks of engines that can."""
ASLEEP = "asleep"
"""The code of the error that requests get meanwhile."""


class SleepOrder(msgspec.Struct):
    """The arguments of the Call "sleep", in JSON. Level 1: weights go to host memory; level 2: they are dropped."""

    level: SleepLevel = 1
    mode: SleepMode = "abort"


class SleepReport(msgspec.Struct):
    """The answer to the Calls "sleep" and "wake_up", in JSON: bytes that were given back."""

    freed_bytes: int = 0


class SleepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/omni/sleep. Without `stage_ids` all stages sleep that can."""

    stage_ids: Annotated[list[int], msgspec.Meta(min_length=1)] | None = None
    level: SleepLevel = 1
    mode: SleepMode = "abort"


class WakeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/omni/wakeup. Without `stage_ids` all stages wake."""

    stage_ids: Annotated[list[int], msgspec.Meta(min_length=1)] | None = None


class Acknowledgement(msgspec.Struct):
    """What one replica has done."""

    stage_id: int
    host: str
    pid: int
    freed_bytes: int


class SleepAnswer(msgspec.Struct):
    """SKIPPED: no stage slept that could be woken."""

    status: Literal["SUCCESS", "SKIPPED"]
    acks: list[Acknowledgement] = []
