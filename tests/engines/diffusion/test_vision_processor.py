from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers

from app.engines.diffusion.vision_processor import ImageProcessor
from tests import tiny_text

SIDE = 56


@pytest.fixture(scope="module")
def processor() -> Any:
    images = transformers.Qwen2VLImageProcessorPil(min_pixels=SIDE * SIDE, max_pixels=SIDE * SIDE)
    return ImageProcessor(images, tiny_text.qwen_tokenizer())


def picture() -> np.ndarray:
    return np.full((SIDE, SIDE, 3), 200, np.uint8)


def test_a_picture_takes_as_many_tokens_as_it_has_patches(processor: Any) -> None:
    text = "<|vision_start|><|image_pad|><|vision_end|> make it green"

    found = processor(text=[text, text], images=[picture(), picture()], padding=True, return_tensors="pt")

    patches = found["image_grid_thw"].prod(dim=1)
    merged = processor.image_processor.merge_size**2
    placeholders = (found["input_ids"] == processor.image_token_id).sum(dim=1)
    assert patches.tolist() == [(SIDE // 14) ** 2] * 2
    assert placeholders.tolist() == (patches // merged).tolist()
    assert found["pixel_values"].shape[0] == patches.sum()


def test_it_survives_saving(processor: Any, tmp_path: Any) -> None:
    processor.save_pretrained(tmp_path)

    again = ImageProcessor.from_pretrained(tmp_path)

    given = {"text": ["<|image_pad|> x"], "images": [picture()]}
    assert again(**given)["input_ids"] == processor(**given)["input_ids"]
