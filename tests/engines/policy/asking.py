"""A policy's engine asked directly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from app.cluster import messages as m
from app.engines.policy.arrays import pack, unpack
from app.engines.policy.engine import PolicyEngine
from app.settings.schema import StageConfig
from tests.tiny_policy import SIDE

PICTURE = np.zeros((SIDE, SIDE, 3), np.uint8)


class Asked:
    """A request that keeps its events."""

    def __init__(self, body: bytes, kind: str = "act") -> None:
        self.request_id, self.kind, self.model, self.body = "r", kind, "", body
        self.events: list[m.AnyEvent] = []

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)

    @property
    def answer(self) -> Any:
        assert [type(event) for event in self.events] == [m.Accepted, m.Document, m.Done]
        return unpack(self.events[1].body)  # type: ignore[union-attr]


def observation(**more: Any) -> bytes:
    return pack({"image": PICTURE, "state": np.zeros(4), "prompt": "pick up the red block"} | more)


def stage(model: Path, **more: Any) -> StageConfig:
    return StageConfig(stage_id=0, name="policy", kind="policy", model=str(model), devices="cpu", **more)


async def ask(engine: PolicyEngine, body: bytes, kind: str = "act") -> Any:
    asked = Asked(body, kind)
    await asyncio.wait_for(engine.run(asked), 60)
    return asked.answer
