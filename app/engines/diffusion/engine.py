"""A diffusion stage: a stock diffusers pipeline in the replica's process, on threads of its own."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from app.cluster.messages import Capabilities, Load
from app.engines.base import Request, still_loading
from app.engines.diffusion.layout import layout
from app.engines.diffusion.options import DiffusionOptions, read_options
from app.engines.diffusion.ranks.group import Group
from app.media.fetch import MediaFetcher
from app.settings.schema import LogConfig, MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.diffusion.service import Service

logger = logging.getLogger("app.diffusion")

_SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits for the interpreter's lock while a pipeline runs Python; by itself it is 5 ms."""


class DiffusionEngine:
    """Implements app.engines.base.Engine.

    Kinds: image, image_edit, image_variation, of which the body is a PictureTask; video, a VideoTask; sound, a
    SoundTask.
    """

    def __init__(
        self,
        stage: StageConfig,
        media: MediaConfig | None = None,
        scratch: str = "",
        log: LogConfig | None = None,
    ) -> None:
        """Raises ValueError: an engine argument of the stage is wrong."""
        self._stage = stage
        self._options = read_options(stage)
        self._fetcher = MediaFetcher(media or MediaConfig())
        self._scratch = scratch
        self._log = log or LogConfig()
        self._threads: ThreadPoolExecutor | None = None
        self._lanes: list[Future[None]] = []
        self._service: Service | None = None
        self._group: Group | None = None

    async def start(self) -> Capabilities:
        """Load the pipeline on a thread that will run it; the event loop stays free meanwhile.

        Raises:
            ValueError: an option cannot be had with this pipeline.
            Exception: diffusers' reason why the pipeline cannot be loaded.
        """
        await asyncio.to_thread(importlib.import_module, "torch")
        import torch

        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # A new thread would compute with as many as there are cores, whatever was set, and their number changes bits.
        lanes = self._options.max_num_seqs if self._options.step_execution else 1
        self._threads = ThreadPoolExecutor(lanes, "diffusion", torch.set_num_threads, (torch.get_num_threads(),))
        service = await self._loaded(self._threads)
        self._lanes = [self._threads.submit(service.runner.serve, service.queue) for _ in range(lanes)]
        self._service = service
        offer = service.offer
        takes_images = any(mode.abilities.takes_image for mode in offer.modes.values())
        return Capabilities(
            tasks=[*offer.kinds(), *service.tasks],
            input_modalities=["text", "image"] if takes_images else ["text"],
            output_modalities=offer.modalities(),
            slots=self._options.max_num_seqs,
            card=offer.card(),
        )

    async def _loaded(self, threads: ThreadPoolExecutor) -> Service:
        """Load on a thread; with several ranks, until one of them ends."""
        loop = asyncio.get_running_loop()
        shared = layout(self._stage.engine_args)
        if shared.world == 1:
            return await loop.run_in_executor(threads, _load, self._stage, self._options, self._fetcher, None)
        # On the thread that stays: the kernel ends the ranks with it.
        scratch = Path(self._scratch or tempfile.gettempdir())
        group = self._group = await loop.run_in_executor(threads, Group, self._stage, shared, scratch, self._log)
        broken = asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(broken.set)

        group.on_broken = tell
        load = loop.run_in_executor(threads, _load, self._stage, self._options, self._fetcher, group)
        end = asyncio.ensure_future(broken.wait())
        await asyncio.wait((load, end), return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if not load.done():
            group.check()
        return await load

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it stops the pipeline at its next step.

        Raises:
            EngineError: the request is refused or failed.
        """
        await self._up().answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a method of app.engines.diffusion.service.

        Raises:
            EngineError: unknown method or bad arguments.
        """
        return await self._up().call(method, arguments)

    def _up(self) -> Service:
        if self._service is None:
            raise still_loading()
        return self._service

    def load(self) -> Load:
        """Requests running and waiting, and the pipeline's signs of life so far."""
        return Load() if self._service is None else self._service.load()

    async def check_health(self) -> None:
        """Raise if a thread or a rank of the engine has ended.

        Raises:
            RuntimeError: one has.
        """
        if self._group is not None:
            self._group.check()
        for lane in self._lanes:
            if lane.done() and not lane.cancelled():
                raise RuntimeError("a thread of the diffusion engine has ended") from lane.exception()

    async def stop(self) -> None:
        """Abandon what runs and end the threads; one that still loads is left to the end of the process."""
        if self._service is not None:
            self._service.close()
        whole = self._group is None or not self._group.broken  # else a thread waits for ranks that are no more
        if self._threads is not None:
            wait = self._service is not None and whole
            await asyncio.to_thread(self._threads.shutdown, wait, cancel_futures=True)
        if self._group is not None:
            await asyncio.to_thread(self._group.close)


def _load(stage: StageConfig, options: DiffusionOptions, fetcher: MediaFetcher, group: Group | None) -> Service:
    from app.engines.diffusion.opening import open_pipeline
    from app.engines.diffusion.service import Service

    opened = open_pipeline(stage, options, meeting=str(group.meeting) if group else "", group=group)
    if group is not None:
        group.settle()
    return Service(opened, options, fetcher, group)
