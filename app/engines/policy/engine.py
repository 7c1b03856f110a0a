"""A policy stage: a model that moves robots in the replica's process, on a thread of its own."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

import msgspec

from app.cluster.messages import Capabilities, Failed, Load
from app.engines.base import EngineError, Request, still_loading
from app.engines.policy.options import read_options
from app.protocol.robot import TASK
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.policy.service import Service


class PolicyEngine:
    """Implements app.engines.base.Engine for the kind "policy"; the body is an observation as its client sent it."""

    def __init__(self, stage: StageConfig, media: MediaConfig | None = None) -> None:
        """Raises ValueError: an engine argument of the stage is wrong."""
        self._stage = stage
        self._options = read_options(stage)
        self._max_pixels = (media or MediaConfig()).max_pixels
        self._service: Service | None = None

    async def start(self) -> Capabilities:
        """Load the model on a thread; the event loop stays free meanwhile.

        Raises:
            ValueError: the model is no policy that is known, or lacks something.
            OSError: a file of the model is missing or broken.
        """
        module = await asyncio.to_thread(importlib.import_module, "app.engines.policy.service")
        service: Service = await asyncio.to_thread(module.open_service, self._stage, self._options, self._max_pixels)
        self._service = service
        return Capabilities(
            tasks=[TASK],
            input_modalities=["text", "image"],
            output_modalities=["action"],
            card=msgspec.json.encode(service.card).decode(),
        )

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it ends the flow at its next step.

        Raises:
            EngineError: the request is refused or failed.
        """
        if self._service is None:
            raise still_loading()
        await self._service.answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """
        Raises:
            EngineError: 404; there is nothing to ask a policy for.
        """
        raise EngineError(Failed(404, f"a policy has no {method}", "not_found_error"))

    def load(self) -> Load:
        """Requests whose actions are being computed, those that wait for that, and steps of the flow so far."""
        return Load() if self._service is None else self._service.load()

    async def check_health(self) -> None:
        """Its thread outlives every request: an engine that has started is healthy."""

    async def stop(self) -> None:
        """Leave what is being computed and end the thread."""
        if self._service is not None:
            await asyncio.to_thread(self._service.close)
