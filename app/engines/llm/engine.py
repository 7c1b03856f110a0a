"""An LLM stage: vLLM's AsyncLLM in the replica's process, its EngineCore as the only child."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from app.cluster.messages import Capabilities, Load
from app.engines.base import Request, still_loading
from app.engines.llm import arguments
from app.engines.llm.startup import StartPlan
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.llm.frontend import Frontend, StepMeter
    from app.engines.llm.service import Service

_SHUTDOWN_S = 3.0
"""What EngineCore gets to leave on its own; its requests have ended by then, and it is killed after that."""


class LlmEngine:
    """Implements app.engines.base.Engine. Kinds: those of app.engines.llm.service; the body is the raw request."""

    def __init__(
        self,
        stage: StageConfig,
        served_model_names: list[str],
        media: MediaConfig | None = None,
        log_level: str = "",
        scratch: str = "",
    ) -> None:
        self._stage = stage
        self._log_level = log_level
        self._scratch = scratch
        self._media = media or MediaConfig()
        self._served_model_names = served_model_names
        # EngineCore dies with the *thread* that forked it (PR_SET_PDEATHSIG), so this one lives until stop().
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm-parent")
        self._older_children: set[int | None] | None = None
        self._frontend: Frontend | None = None
        self._meter: StepMeter | None = None
        self._service: Service | None = None
        self._instance = secrets.token_hex(4)

    async def start(self) -> Capabilities:
        """Load the model; the event loop stays free meanwhile.

        Raises:
            EngineArgumentError: an engine argument is wrong.
            Exception: vLLM's reason why the model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        args, frontend, self._meter = await loop.run_in_executor(self._thread, self._load)
        self._frontend = frontend
        from app.engines.llm.service import Service

        self._service = await Service.create(frontend, args, self._instance, self._media)
        _settle()
        return _capabilities(frontend, self._service, self._instance)

    def _load(self) -> tuple[Any, Frontend, StepMeter]:
        self._older_children = {child.pid for child in multiprocessing.active_children()}
        plan = StartPlan(self._stage.engine_args, self._log_level, self._scratch)
        plan.prepare()
        args = arguments.parse(self._stage, self._served_model_names, plan.defaults())
        config = plan.configure(args)
        from app.engines.llm import media
        from app.engines.llm.frontend import Frontend, StepMeter

        media.install(self._media)
        meter = StepMeter()
        frontend = Frontend.from_vllm_config(
            config,
            stat_loggers=[lambda _config, _index: meter],
            enable_log_requests=args.enable_log_requests,
            disable_log_stats=args.disable_log_stats,
        )
        return args, frontend, meter

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it aborts it in vLLM.

        Raises:
            EngineError: the request is refused or failed.
        """
        await self._up().answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a method of app.engines.llm.service, or "metrics" as text.

        Raises:
            EngineError: unknown method or bad arguments.
        """
        service = self._up()
        if method == "metrics":
            from app.engines.llm.exposition import exposition

            return await asyncio.to_thread(exposition)
        return await service.call(method, arguments)

    def _up(self) -> Service:
        if self._service is None:
            raise still_loading()
        return self._service

    def load(self) -> Load:
        """Sequences running and waiting in vLLM (a request with n=2 is two), and its steps so far."""
        if self._frontend is None or self._meter is None:
            return Load()
        unfinished = self._frontend.get_num_unfinished_requests()
        running = min(self._meter.running, unfinished)
        return Load(running, unfinished - running, self._meter.steps)

    async def check_health(self) -> None:
        """Raise if EngineCore is dead.

        Raises:
            EngineDeadError: it is.
        """
        if self._frontend is not None:
            await self._frontend.check_health()

    async def stop(self) -> None:
        """End EngineCore, within seconds, also while it still loads."""
        frontend = self._frontend
        if frontend is None:
            self._kill_loading()
        else:
            if frontend.output_handler is not None:
                frontend.output_handler.cancel()  # it would report the end of EngineCore as an error
            await asyncio.get_running_loop().run_in_executor(self._thread, frontend.shutdown, _SHUTDOWN_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _kill_loading(self) -> None:
        """The loading thread cannot be stopped; what it waits for can."""
        if self._older_children is not None:
            for child in multiprocessing.active_children():
                if child.pid not in self._older_children:
                    child.kill()


def _settle() -> None:
    """Everything is loaded: vLLM need not look up its variables for each token, nor the collector visit what stays.

    Measured at 64 streams: about a tenth of this process's time per token.
    """
    from vllm.envs import enable_envs_cache
    from vllm.utils.gc_utils import freeze_gc_heap

    enable_envs_cache()
    freeze_gc_heap()


def _capabilities(frontend: Frontend, service: Service, instance: str) -> Capabilities:
    processor = frontend.renderer.mm_processor
    media = [] if processor is None else [name for name, limit in processor.info.allowed_mm_limits.items() if limit]
    return Capabilities(
        tasks=service.tasks,
        max_model_len=frontend.model_config.max_model_len,
        input_modalities=["text", *sorted(media)],
        output_modalities=["text"] if service.generates else [],
        slots=frontend.vllm_config.scheduler_config.max_num_seqs,
        instance=instance,
    )
