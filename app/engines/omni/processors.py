"""The omni models' processors for machines without torchvision: text, images and sounds, but no videos."""

from __future__ import annotations

from typing import Any

from transformers import ProcessorMixin
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor
from transformers.processing_utils import VideosKwargs

_TOKENS = (
    "image_token",
    "audio_token",
    "video_token",
    "vision_bos_token",
    "vision_eos_token",
    "audio_bos_token",
    "audio_eos_token",
)


class _NoVideos:
    """Stands for the video processor, of which the processors ask sizes even where there is no video."""

    valid_kwargs = VideosKwargs

    def __init__(self, merge_size: int) -> None:
        self.merge_size = merge_size


def _prepare(processor: Any, image_processor: Any, feature_extractor: Any, tokenizer: Any, template: Any) -> None:
    # Not the parent's __init__: it asks for a video processor, whose class is a placeholder without torchvision.
    ProcessorMixin.__init__(processor, image_processor, feature_extractor, tokenizer, chat_template=template)
    processor.video_processor = _NoVideos(image_processor.merge_size)
    for name in _TOKENS:
        setattr(processor, name, getattr(tokenizer, name))


class Qwen2_5OmniWithoutVideos(Qwen2_5OmniProcessor):  # type: ignore[misc] # noqa: N801
    """Text, images and sounds for Qwen2.5-Omni."""

    def __init__(
        self,
        image_processor: Any = None,
        feature_extractor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        **_: Any,
    ) -> None:
        _prepare(self, image_processor, feature_extractor, tokenizer, chat_template)


class Qwen3OmniMoeWithoutVideos(Qwen3OmniMoeProcessor):  # type: ignore[misc]
    """Text, images and sounds for Qwen3-Omni."""

    def __init__(
        self,
        image_processor: Any = None,
        feature_extractor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        **_: Any,
    ) -> None:
        _prepare(self, image_processor, feature_extractor, tokenizer, chat_template)
