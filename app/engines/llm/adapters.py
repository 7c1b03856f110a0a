"""LoRA adapters of a running engine: loaded and unloaded by name, or brought in line with what the master knows."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

from app.cluster.messages import Adapter, Failed
from app.engines.base import EngineError
from app.engines.llm.errors import bad_request, refusal_of
from app.engines.llm.frontend import Frontend
from app.protocol.errors import default_type

logger = logging.getLogger("app.engines.llm")

_CONFIG = "adapter_config.json"


class Adapters:
    """`models` is vLLM's OpenAIServingModels, which keeps the names."""

    def __init__(self, frontend: Frontend, models: Any) -> None:
        self._frontend = frontend
        self._models = models
        self._loaded: dict[str, Adapter] = {}
        self._listed: list[Adapter] = []

    @property
    def supported(self) -> bool:
        """Whether the stage was started with enable_lora."""
        return self._frontend.vllm_config.lora_config is not None

    async def load(self, adapter: Adapter, *, replace: bool = False) -> None:
        """Load it, in place of one of the same name if `replace` is true. Loading the same again does nothing.

        Raises:
            EngineError: 400, there is no adapter at its path, or it does not fit the model.
        """
        if not replace and self._loaded.get(adapter.name) == adapter:
            return
        if not (Path(adapter.path) / _CONFIG).is_file():
            raise bad_request(
                f"there is no LoRA adapter at {adapter.path!r} on the replica's host: a directory with {_CONFIG} "
                "is expected",
                param="lora_path",
                code="invalid_value",
            )
        request = LoadLoRAAdapterRequest(
            lora_name=adapter.name, lora_path=adapter.path, load_inplace=replace, is_3d_lora_weight=adapter.is_3d
        )
        answer = await self._models.load_lora_adapter(request)
        if isinstance(answer, ErrorResponse):
            raise _refused(answer)
        self._loaded[adapter.name] = adapter

    async def unload(self, name: str) -> None:
        """Forget it and free its weights.

        Raises:
            EngineError: 404, no adapter of that name is loaded.
        """
        request = self._models.lora_requests.get(name)
        answer = await self._models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name))
        if isinstance(answer, ErrorResponse):
            raise EngineError(
                Failed(404, f"no LoRA adapter {name!r} is loaded", default_type(404), "lora_name", "adapter_not_found")
            )
        await self._frontend.remove_lora(request.lora_int_id)  # vLLM forgets the name only
        self._loaded.pop(name, None)

    async def sync(self, wanted: list[Adapter]) -> None:
        """Follow the master's list: load what is missing, unload what it has dropped since the last time.

        One that cannot be loaded costs the others nothing.
        """
        dropped = {adapter.name for adapter in self._listed} - {adapter.name for adapter in wanted}
        self._listed = wanted
        for name in dropped & self._loaded.keys():
            await self._try(self.unload(name), name)
        for adapter in wanted:
            await self._try(self.load(adapter, replace=self._stale(adapter)), adapter.name)

    def _stale(self, adapter: Adapter) -> bool:
        return self._loaded.get(adapter.name, adapter) != adapter

    async def _try(self, step: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await step
        except EngineError as error:
            logger.error("LoRA adapter %r: %s", name, error)


def _refused(answer: ErrorResponse) -> EngineError:
    """vLLM answers 500 for whatever is wrong with the files."""
    error = answer.error.model_dump()
    if error["code"] >= 500:
        return bad_request(f"the adapter does not fit: {error['message']}", param="lora_path", code="invalid_value")
    failed = refusal_of(error, prompt="lora_path").failed
    return EngineError(msgspec.structs.replace(failed, param=failed.param or "lora_name", code="invalid_value"))
