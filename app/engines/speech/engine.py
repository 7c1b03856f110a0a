"""A speech stage: a text-to-speech model in the replica's process, on threads of its own."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

import msgspec

from app.cluster.messages import Capabilities, Load
from app.engines.base import Request, still_loading
from app.engines.speech.options import read_options
from app.media.fetch import MediaFetcher
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.speech.service import Service


class SpeechEngine:
    """Implements app.engines.base.Engine for the kind "speech"; the body is a SpeechTask."""

    def __init__(self, stage: StageConfig, media: MediaConfig | None = None) -> None:
        """Raises ValueError: an engine argument of the stage is wrong."""
        self._stage = stage
        self._options = read_options(stage)
        self._fetcher = MediaFetcher(media or MediaConfig())
        self._service: Service | None = None

    async def start(self) -> Capabilities:
        """Load the model on a thread; the event loop stays free meanwhile.

        Raises:
            ValueError: the model is of no known family, lacks something, or an option cannot be had with it.
            OSError: a file of the model is missing or broken.
        """
        module = await asyncio.to_thread(importlib.import_module, "app.engines.speech.service")
        service: Service = await asyncio.to_thread(module.open_service, self._stage, self._options, self._fetcher)
        self._service = service
        hears = {"audio", "transcribed"} & set(service.card.cloning)
        return Capabilities(
            tasks=["speech"],
            input_modalities=["text", "audio"] if hears else ["text"],
            output_modalities=["audio"],
            slots=service.slots,
            card=msgspec.json.encode(service.card).decode(),
        )

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it ends its sound at the model's next step.

        Raises:
            EngineError: the request is refused or failed.
        """
        await self._up().answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a method of app.engines.speech.service.

        Raises:
            EngineError: unknown method or bad arguments.
        """
        return await self._up().call(method, arguments)

    def _up(self) -> Service:
        if self._service is None:
            raise still_loading()
        return self._service

    def load(self) -> Load:
        """Requests being spoken and waiting for their turn, and the model's signs of life so far."""
        return Load() if self._service is None else self._service.load()

    async def check_health(self) -> None:
        """Its threads outlive every request: an engine that has started is healthy."""

    async def stop(self) -> None:
        """Abandon what is being spoken and end the threads."""
        if self._service is not None:
            await asyncio.to_thread(self._service.close)
