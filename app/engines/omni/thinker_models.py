"""vLLM's thinkers for machines without torchvision: they see images and hear, and take no videos."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.model_executor.models import qwen2_5_omni_thinker as qwen2_5
from vllm.model_executor.models import qwen3_omni_moe_thinker as qwen3
from vllm.multimodal import MULTIMODAL_REGISTRY

from app.engines.omni.processors import Qwen2_5OmniWithoutVideos, Qwen3OmniMoeWithoutVideos

# vLLM's classes make the processors by these names, some in class methods.
qwen2_5.Qwen2_5OmniProcessor = Qwen2_5OmniWithoutVideos
qwen3.Qwen3OmniMoeProcessor = Qwen3OmniMoeWithoutVideos
_LIMITS: Mapping[str, int | None] = {"audio": None, "image": None}


class _Qwen2_5Info(qwen2_5.Qwen2_5OmniThinkerProcessingInfo):  # type: ignore[misc] # noqa: N801
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return _LIMITS


class _Qwen3Info(qwen3.Qwen3OmniMoeThinkerProcessingInfo):  # type: ignore[misc]
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return _LIMITS


@MULTIMODAL_REGISTRY.register_processor(
    qwen2_5.Qwen2_5OmniThinkerMultiModalProcessor,
    info=_Qwen2_5Info,
    dummy_inputs=qwen2_5.Qwen2_5OmniThinkerDummyInputsBuilder,
)
class Qwen2_5OmniThinker(qwen2_5.Qwen2_5OmniThinkerForConditionalGeneration):  # type: ignore[misc] # noqa: N801
    """Computes what its parent does."""


@MULTIMODAL_REGISTRY.register_processor(
    qwen3.Qwen3OmniMoeThinkerMultiModalProcessor,
    info=_Qwen3Info,
    dummy_inputs=qwen3.Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class Qwen3OmniMoeThinker(qwen3.Qwen3OmniMoeThinkerForConditionalGeneration):  # type: ignore[misc]
    """Computes what its parent does."""
