"""Keeps a replica's engine in line with the master's list of LoRA adapters."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from app.cluster.messages import Adapter
from app.engines.base import Engine, EngineError

logger = logging.getLogger("app.replica")


class AdapterSync:
    """`want` takes the master's latest list; `settle`, once the engine has started, brings the engine in line."""

    def __init__(self, engine: Engine, stage_id: int) -> None:
        self._engine = engine
        self._stage_id = stage_id
        self._wanted: list[Adapter] = []
        self._done: list[Adapter] = []
        self._started = False
        self._task: asyncio.Task[None] | None = None

    def want(self, adapters: list[Adapter]) -> None:
        """From now on these; those of other stages among them."""
        self._wanted = [adapter for adapter in adapters if adapter.stage_id == self._stage_id]
        if self._started and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._follow(), name="adapters")

    async def settle(self) -> None:
        """Load what the master had told before the engine was up, and follow it from now on."""
        self._started = True
        await self._follow()

    async def _follow(self) -> None:
        while self._done != self._wanted:
            self._done = self._wanted
            try:
                await self._engine.call("set_adapters", msgspec.json.encode(self._done))
            except EngineError as error:
                logger.error("the LoRA adapters of this replica are not the master's: %s", error)
