"""LoRA adapters of a running engine: loaded and unloaded by name, or brought in line with what the master knows."""

from __future__ import annotations

import logging
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
        """Load what is missing and unload what is not wanted; one that cannot be loaded costs the others nothing."""
        names = {adapter.name for adapter in wanted}
        for name in [name for name in self._loaded if name not in names]:
            await self.unload(name)
        for adapter in wanted:
            try:
                await self.load(adapter, replace=adapter.name in self._loaded)
            except EngineError as error:
                logger.error("the LoRA adapter %r cannot be loaded: %s", adapter.name, error)


def _refused(answer: ErrorResponse) -> EngineError:
    """vLLM answers 500 for whatever is wrong with the files."""
    error = answer.error.model_dump()
    if error["code"] >= 500:
        return bad_request(f"the adapter does not fit: {error['message']}", param="lora_path", code="invalid_value")
    failed = refusal_of(error, prompt="lora_path").failed
    return EngineError(msgspec.structs.replace(failed, param=failed.param or "lora_name", code="invalid_value"))
