"""An LLM stage: vLLM's AsyncLLM in the replica's process, its EngineCore as the only child."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from app.cluster.messages import Capabilities, Failed, Load
from app.engines.base import EngineError, Request
from app.engines.llm import arguments
from app.engines.llm.startup import StartPlan
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.llm.frontend import Frontend, StepMeter
    from app.engines.llm.serving import Serving

_SHUTDOWN_S = 3.0
"""What EngineCore gets to leave on its own; its requests have ended by then, and it is killed after that."""


class LlmEngine:
    """Implements app.engines.base.Engine. Kinds: "chat" and "completion"; the body is the raw OpenAI request."""

    def __init__(self, stage: StageConfig, served_model_names: list[str], media: MediaConfig | None = None) -> None:
        self._stage = stage
        self._media = media or MediaConfig()
        self._served_model_names = served_model_names
        # EngineCore dies with the *thread* that forked it (PR_SET_PDEATHSIG), so this one lives until stop().
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm-parent")
        self._frontend: Frontend | None = None
        self._meter: StepMeter | None = None
        self._serving: Serving | None = None

    async def start(self) -> Capabilities:
        """Load the model; the event loop stays free meanwhile.

        Raises:
            EngineArgumentError: an engine argument is wrong.
            Exception: vLLM's reason why the model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        args, frontend, self._meter = await loop.run_in_executor(self._thread, self._load)
        self._frontend = frontend
        from app.engines.llm.serving import Serving

        self._serving = await Serving.create(frontend, args)
        return _capabilities(frontend)

    def _load(self) -> tuple[Any, Frontend, StepMeter]:
        plan = StartPlan(self._stage.engine_args)
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
        if request.kind not in ("chat", "completion"):
            raise EngineError(Failed(400, f"an LLM stage does not serve {request.kind!r}", "invalid_request_error"))
        await self._up().answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer "tokenize", "detokenize" or "models" (vLLM's request and response bodies), or "metrics" as text.

        Raises:
            EngineError: unknown method or bad arguments.
        """
        serving = self._up()
        if method == "metrics":
            from app.engines.llm.exposition import exposition

            return await asyncio.to_thread(exposition)
        return await serving.call(method, arguments)

    def _up(self) -> Serving:
        if self._serving is None:
            raise EngineError(Failed(503, "the model is still loading", "service_unavailable_error", code="loading"))
        return self._serving

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
            for child in multiprocessing.active_children():
                child.kill()
        else:
            if frontend.output_handler is not None:
                frontend.output_handler.cancel()  # it would report the end of EngineCore as an error
            await asyncio.get_running_loop().run_in_executor(self._thread, frontend.shutdown, _SHUTDOWN_S)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _capabilities(frontend: Frontend) -> Capabilities:
    processor = frontend.renderer.mm_processor
    media = [] if processor is None else [name for name, limit in processor.info.allowed_mm_limits.items() if limit]
    return Capabilities(
        tasks=["chat", "completion", "tokenize", "detokenize"],
        max_model_len=frontend.model_config.max_model_len,
        input_modalities=["text", *sorted(media)],
        output_modalities=["text"],
    )
