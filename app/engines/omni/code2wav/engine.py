"""A vocoder stage: the part of an omni model that makes sound of codec frames, on a thread of the replica's process."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import TYPE_CHECKING

import msgspec

from app.cluster.messages import Capabilities, Failed, Load
from app.engines.base import EngineError, Request, still_loading
from app.engines.omni.code2wav.options import read_options
from app.engines.threads import all_cores_but_one
from app.settings.schema import StageConfig

if TYPE_CHECKING:
    from app.engines.omni.code2wav.service import Service


class Code2WavEngine:
    """Implements app.engines.base.Engine for the kind "generation"; the body is a SpeechTask, the input is codes.

    A tensor "codes" is int32, of a shape (n, groups), or (n,) where a frame is one code.
    """

    def __init__(self, stage: StageConfig) -> None:
        """Raises ValueError: an engine argument of the stage is wrong."""
        self._stage = stage
        self._options = read_options(stage)
        self._service: Service | None = None

    async def start(self) -> Capabilities:
        """Load the model on a thread; the event loop stays free meanwhile.

        Raises:
            ValueError: the model is of no known family, lacks something, or an option cannot be had with it.
            OSError: a file of the model is missing or broken.
        """
        os.environ.setdefault("OMP_NUM_THREADS", all_cores_but_one())  # torch reads it when it is imported
        module = await asyncio.to_thread(importlib.import_module, "app.engines.omni.code2wav.service")
        service: Service = await asyncio.to_thread(module.open_service, self._stage, self._options)
        self._service = service
        return Capabilities(
            tasks=["code2wav"],
            output_modalities=["audio"],
            card=msgspec.json.encode(service.card).decode(),
        )

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it ends its sound at the model's next step.

        Raises:
            EngineError: the request is refused or failed.
        """
        await self._up().answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """
        Raises:
            EngineError: 404; there is nothing to ask a vocoder for.
        """
        raise EngineError(Failed(404, f"a vocoder has no {method}", "not_found_error"))

    def _up(self) -> Service:
        if self._service is None:
            raise still_loading()
        return self._service

    def load(self) -> Load:
        """Requests being decoded and waiting for their turn, and the model's signs of life so far."""
        return Load() if self._service is None else self._service.load()

    async def check_health(self) -> None:
        """Its thread outlives every request: an engine that has started is healthy."""

    async def stop(self) -> None:
        """Abandon what is being decoded and end the thread."""
        if self._service is not None:
            self._service.abandon()
            await asyncio.to_thread(self._service.close)
