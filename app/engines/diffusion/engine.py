"""A diffusion stage: a stock diffusers pipeline in the replica's process, on threads of its own."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from app.cluster.messages import Capabilities, Load
from app.engines.base import Request, still_loading
from app.engines.diffusion.options import DiffusionOptions, read_options
from app.media.fetch import MediaFetcher
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.diffusion.service import Service

logger = logging.getLogger("app.diffusion")

_SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits for the interpreter's lock while a pipeline runs Python; by itself it is 5 ms."""


class DiffusionEngine:
    """Implements app.engines.base.Engine.

    Kinds: image, image_edit, image_variation, of which the body is a PictureTask; or sound, a SoundTask.
    """

    def __init__(self, stage: StageConfig, media: MediaConfig | None = None, scratch: str = "") -> None:
        """Raises ValueError: an engine argument of the stage is wrong."""
        self._stage = stage
        self._options = read_options(stage)
        self._fetcher = MediaFetcher(media or MediaConfig())
        self._scratch = scratch
        self._threads: ThreadPoolExecutor | None = None
        self._lanes: list[Future[None]] = []
        self._service: Service | None = None

    async def start(self) -> Capabilities:
        """Load the pipeline on a thread that will run it; the event loop stays free meanwhile.

        Raises:
            ValueError: an option cannot be had with this pipeline.
            Exception: diffusers' reason why the pipeline cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(importlib.import_module, "torch")
        import torch

        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # A new thread would compute with as many as there are cores, whatever was set, and their number changes bits.
        lanes = self._options.max_num_seqs if self._options.step_execution else 1
        self._threads = ThreadPoolExecutor(lanes, "diffusion", torch.set_num_threads, (torch.get_num_threads(),))
        service = await loop.run_in_executor(self._threads, _load, self._stage, self._options, self._fetcher)
        self._lanes = [self._threads.submit(service.runner.serve, service.queue) for _ in range(lanes)]
        self._service = service
        offer = service.offer
        takes_images = any(mode.abilities.takes_image for mode in offer.modes.values())
        return Capabilities(
            tasks=[*offer.kinds(), *(["adapters"] if service.adapters.possible else [])],
            input_modalities=["text", "image"] if takes_images else ["text"],
            output_modalities=["image"] if offer.sound is None else ["audio"],
            slots=self._options.max_num_seqs,
            card=offer.card(),
        )

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
        """Raise if a thread of the engine has ended.

        Raises:
            RuntimeError: one has.
        """
        for lane in self._lanes:
            if lane.done() and not lane.cancelled():
                raise RuntimeError("a thread of the diffusion engine has ended") from lane.exception()

    async def stop(self) -> None:
        """Abandon what runs and end the threads; one that still loads is left to the end of the process."""
        if self._service is not None:
            self._service.close()
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown, self._service is not None, cancel_futures=True)


def _load(stage: StageConfig, options: DiffusionOptions, fetcher: MediaFetcher) -> Service:
    from app.engines.diffusion.batching import RowQueue
    from app.engines.diffusion.caches import request_caches
    from app.engines.diffusion.loading import load
    from app.engines.diffusion.lora import Adapters
    from app.engines.diffusion.offer import survey
    from app.engines.diffusion.profiler import Profiler
    from app.engines.diffusion.run import Runner
    from app.engines.diffusion.service import Service
    from app.engines.diffusion.stepping import Stepper
    from app.engines.diffusion.tuning import tune

    pipe = load(options, stage.model, logger.info)
    for line in tune(pipe, options):
        logger.info("%s", line)
    offer = survey(pipe, options)
    adapters = Adapters(pipe, options)
    profiler = Profiler(pipe) if options.enable_diffusion_pipeline_profiler else None
    if options.step_execution:
        stepper = Stepper(pipe, offer, adapters, options.max_num_seqs, profiler=profiler)
        runner = Runner(pipe, offer, adapters, stepper=stepper, profiler=profiler)
        return Service(offer, runner, RowQueue(1), adapters, fetcher)
    queue = RowQueue(options.max_num_seqs, options.request_batch_max_wait_ms / 1000, options.max_loras)
    runner = Runner(pipe, offer, adapters, cache=request_caches(pipe, options), profiler=profiler)
    return Service(offer, runner, queue, adapters, fetcher)
