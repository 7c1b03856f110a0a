"""A talker's stage: what the thinker makes goes into vLLM while it is made, and codec ids come out."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from app.cluster.messages import Capabilities, Failed, Load
from app.engines.base import EngineError, Request, still_loading
from app.engines.llm import process
from app.engines.llm.arguments import EngineArgumentError
from app.engines.llm.process import EngineProcess
from app.engines.omni.talker.sampling import TalkerSampling
from app.engines.speech.sampling import sampling_of
from app.settings.schema import StageConfig

if TYPE_CHECKING:
    from app.engines.omni.talker.family import TalkerFamily
    from app.engines.omni.talker.service import Service

_NEEDED: Mapping[str, Any] = {
    "skip_tokenizer_init": True,  # the tokenizer is the thinker's; codec ids have none
    "mm_processor_cache_gb": 0,  # no two items are equal
    "enable_prefix_caching": False,  # nor are two prompts
}
_OURS = frozenset({*_NEEDED, "hf_overrides", "tokenizer", "runner", "convert"})


class TalkerEngine:
    """Implements app.engines.base.Engine. Kind: "talk"; the body is a SpeechTask, the rest comes as tensors."""

    def __init__(
        self, stage: StageConfig, served_model_names: list[str], log_level: str = "", scratch: str = ""
    ) -> None:
        self._stage = stage
        self._served_model_names = served_model_names
        self._log_level = log_level
        self._scratch = scratch
        self._family: TalkerFamily | None = None
        self._process: EngineProcess | None = None
        self._service: Service | None = None

    async def start(self) -> Capabilities:
        """Load the model; the event loop stays free meanwhile.

        Raises:
            ValueError: the checkpoint has no talker that is known, or a sampling parameter of the stage is wrong.
            EngineArgumentError: an engine argument is wrong.
            OSError: a file of the model is missing or cannot be read.
            Exception: vLLM's reason why the model cannot be loaded.
        """
        self._family = family = await asyncio.to_thread(_open, self._stage.model)
        defaults = _defaults(self._stage, family)
        _check_arguments(self._stage, family)
        family.open(self._scratch)
        self._process = EngineProcess(self._log_level, self._scratch, [family.architecture])
        stage = msgspec.structs.replace(self._stage, default_sampling_params={})
        _, frontend = await self._process.start(stage, self._served_model_names, self._prepare)
        from app.engines.omni.talker.service import TASKS, Service

        self._service = Service(frontend, family, defaults)
        process.settle()
        return Capabilities(
            tasks=list(TASKS),
            max_model_len=frontend.model_config.max_model_len,
            slots=frontend.vllm_config.scheduler_config.max_num_seqs,
        )

    def _prepare(self, args: Namespace) -> None:
        assert self._family is not None
        args.hf_overrides = self._family.hf_overrides
        for name, value in {**_NEEDED, **self._family.engine_args}.items():
            setattr(args, name, value)

    async def run(self, request: Request) -> None:
        """Serve one request to its end; cancelling it aborts it in vLLM.

        Raises:
            EngineError: the request is refused or failed.
        """
        if self._service is None:
            raise still_loading()
        await self._service.answer(request)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer "metrics" as text.

        Raises:
            EngineError: 404, another method; 503, it has not started.
        """
        if self._service is None:
            raise still_loading()
        if method != "metrics":
            raise EngineError(Failed(404, f"a talker has no {method}", "not_found_error"))
        return await process.metrics()

    def load(self) -> Load:
        """Requests that vLLM computes, and those that wait for their turn; what waits for its thinker is neither."""
        if self._service is None or self._process is None:
            return Load()
        active, vllm = self._service.active, self._process.load()
        running = min(active, vllm.running)
        return Load(running, active - running + self._service.queued, vllm.steps)

    async def check_health(self) -> None:
        """Raise if EngineCore is dead.

        Raises:
            EngineDeadError: it is.
        """
        if self._process is not None:
            await self._process.check_health()

    async def stop(self) -> None:
        """End EngineCore, within seconds, also while it still loads."""
        if self._process is not None:
            await self._process.stop()
        if self._family is not None:
            self._family.close()


def _open(model: str) -> TalkerFamily:
    from app.engines.omni.talker.families import open_family

    return open_family(model)


def _defaults(stage: StageConfig, family: TalkerFamily) -> Mapping[str, Any]:
    """The stage's sampling parameters over the checkpoint's, checked.

    Raises:
        ValueError: one is unknown or has a value that cannot be.
    """
    defaults = {**family.sampling, **stage.default_sampling_params}
    try:
        sampling_of(TalkerSampling, defaults, {}, family.card.family)
    except EngineError as error:
        raise ValueError(f"stage {stage.stage_id} ({stage.name}): default_sampling_params: {error}") from None
    return defaults


def _check_arguments(stage: StageConfig, family: TalkerFamily) -> None:
    """
    Raises:
        EngineArgumentError: an argument is one that the talker itself sets.
    """
    for name in sorted(stage.engine_args.keys() & {*_OURS, *family.engine_args}):
        message = f"stage {stage.stage_id} ({stage.name}): engine argument {name!r} is the talker's own; remove it"
        raise EngineArgumentError(message)
