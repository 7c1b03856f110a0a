"""vLLM in this replica: its AsyncLLM here and its EngineCore as a child, from their start to their certain end."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from app.cluster.messages import Load
from app.engines.llm import arguments
from app.engines.llm.startup import StartPlan
from app.settings.schema import StageConfig

if TYPE_CHECKING:
    from argparse import Namespace

    from app.engines.llm.frontend import Frontend, StepMeter

_SHUTDOWN_S = 3.0
"""What EngineCore gets to leave on its own; its requests have ended by then, and it is killed after that."""


class EngineProcess:
    """Owns both. `architectures` are the names of the model's classes where its config.json does not say them."""

    def __init__(self, log_level: str = "", scratch: str = "", architectures: Sequence[str] | None = None) -> None:
        self._log_level = log_level
        self._scratch = scratch
        self._architectures = architectures
        # EngineCore dies with the *thread* that forked it (PR_SET_PDEATHSIG), so this one lives until stop().
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm-parent")
        self._older_children: set[int | None] | None = None
        self.frontend: Frontend | None = None
        self._meter: StepMeter | None = None

    async def start(
        self,
        stage: StageConfig,
        served_model_names: list[str],
        prepare: Callable[[Namespace], None],
        defaults: dict[str, Any] | None = None,
    ) -> tuple[Namespace, Frontend]:
        """Load the model; the event loop stays free meanwhile. `defaults` are engine arguments that the stage may set.

        `prepare` is called, on the thread that loads, with vLLM's arguments, before vLLM makes anything of them.

        Raises:
            EngineArgumentError: an engine argument is wrong.
            Exception: vLLM's reason why the model cannot be loaded.
        """
        work = partial(self._load, stage, served_model_names, prepare, defaults or {})
        args, frontend, self._meter = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        self.frontend = frontend
        return args, frontend

    def _load(
        self,
        stage: StageConfig,
        served_model_names: list[str],
        prepare: Callable[[Namespace], None],
        defaults: dict[str, Any],
    ) -> tuple[Namespace, Frontend, StepMeter]:
        self._older_children = {child.pid for child in multiprocessing.active_children()}
        plan = StartPlan(stage.engine_args, self._log_level, self._scratch)
        plan.prepare()
        args = arguments.parse(stage, served_model_names, defaults | plan.defaults())
        prepare(args)
        config = plan.configure(args, self._architectures)
        from app.engines.llm.frontend import Frontend, StepMeter
        from app.engines.llm.times import RequestTimes, StageStatistics

        meter = StepMeter()
        logs = {arguments.PROFILER: RequestTimes, arguments.STATISTICS: StageStatistics}
        frontend = Frontend.from_vllm_config(
            config,
            stat_loggers=[
                lambda _config, _index: meter,
                *(log for name, log in logs.items() if stage.engine_args.get(name)),
            ],
            enable_log_requests=args.enable_log_requests,
            disable_log_stats=args.disable_log_stats,
        )
        return args, frontend, meter

    def load(self) -> Load:
        """Sequences running and waiting in vLLM (a request with n=2 is two), and its steps so far."""
        if self.frontend is None or self._meter is None:
            return Load()
        unfinished = self.frontend.get_num_unfinished_requests()
        running = min(self._meter.running, unfinished)
        return Load(running, unfinished - running, self._meter.steps)

    async def check_health(self) -> None:
        """Raise if EngineCore is dead.

        Raises:
            EngineDeadError: it is.
        """
        if self.frontend is not None:
            await self.frontend.check_health()

    async def stop(self) -> None:
        """End EngineCore, within seconds, also while it still loads."""
        frontend = self.frontend
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


def settle() -> None:
    """Everything is loaded: vLLM need not look up its variables for each token, nor the collector visit what stays.

    Measured at 64 streams: about a tenth of this process's time per token.
    """
    from vllm.envs import enable_envs_cache
    from vllm.utils.gc_utils import freeze_gc_heap

    enable_envs_cache()
    freeze_gc_heap()


async def metrics() -> bytes:
    """vLLM's own metrics as text: the answer to the Call "metrics"."""
    from app.engines.llm.exposition import exposition

    return await asyncio.to_thread(exposition)
