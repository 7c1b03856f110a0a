"""An LLM stage: what answers requests with the vLLM that runs in the replica."""

from __future__ import annotations

import secrets
from argparse import Namespace
from typing import TYPE_CHECKING

from app.cluster.messages import Capabilities, Load
from app.engines.base import Request, still_loading
from app.engines.llm import process
from app.engines.llm.process import EngineProcess
from app.engines.omni.thinker import Thinker
from app.settings.schema import MediaConfig, StageConfig

if TYPE_CHECKING:
    from app.engines.llm.frontend import Frontend
    from app.engines.llm.service import Service


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
        self._media = media or MediaConfig()
        self._served_model_names = served_model_names
        self._process = EngineProcess(log_level, scratch)
        self._scratch = scratch
        self._thinker: Thinker | None = None
        self._service: Service | None = None
        self._can_sleep = bool(stage.engine_args.get("enable_sleep_mode"))
        self._instance = secrets.token_hex(4)

    async def start(self) -> Capabilities:
        """Load the model; the event loop stays free meanwhile.

        Raises:
            EngineArgumentError: an engine argument is wrong.
            Exception: vLLM's reason why the model cannot be loaded.
        """
        if self._stage.model_stage == "thinker":
            self._thinker = Thinker(self._stage, self._scratch)
        args, frontend = await self._process.start(self._stage, self._served_model_names, self._prepare)
        from app.engines.llm.service import Service

        self._service = await Service.create(
            frontend, args, self._instance, self._media, self._thinker, can_sleep=self._can_sleep
        )
        process.settle()
        return _capabilities(frontend, self._service, self._instance)

    def _prepare(self, args: Namespace) -> None:
        from app.engines.llm import media

        media.install(self._media)
        if self._thinker is not None:
            self._thinker.prepare(args)

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
        return await process.metrics() if method == "metrics" else await service.call(method, arguments)

    def _up(self) -> Service:
        if self._service is None:
            raise still_loading()
        return self._service

    def load(self) -> Load:
        """Sequences running and waiting in vLLM (a request with n=2 is two), and its steps so far."""
        return self._process.load()

    async def check_health(self) -> None:
        """Raise if EngineCore is dead.

        Raises:
            EngineDeadError: it is.
        """
        await self._process.check_health()

    async def stop(self) -> None:
        """End EngineCore, within seconds, also while it still loads."""
        await self._process.stop()
        if self._thinker is not None:
            self._thinker.close()


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
