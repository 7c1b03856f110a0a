"""The image half of Qwen-VL's processor, for machines without torchvision: the video half cannot be made there."""

from __future__ import annotations

from typing import Any

from transformers import ProcessorMixin, Qwen2VLProcessor


class ImageProcessor(Qwen2VLProcessor):  # type: ignore[misc]
    """Prepares images and text as Qwen2-VL and Qwen2.5-VL want them; videos are refused by its lack of a part."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None, **_: Any
    ) -> None:
        self.image_token = getattr(tokenizer, "image_token", "<|image_pad|>")
        self.video_token = getattr(tokenizer, "video_token", "<|video_pad|>")
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        # Not the parent's: it asks for a video processor, whose class is a placeholder where torchvision is missing.
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
