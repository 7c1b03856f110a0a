"""Pixels are those of the pipelines' own conversion to Pillow images, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.video_processor import VideoProcessor

from app.engines.diffusion import pixels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("output_type", ["pt", "np", "pil"])
def test_rounding(dtype: torch.dtype, output_type: str) -> None:
    values = torch.linspace(-1.2, 1.2, 2 * 3 * 40 * 24).reshape(2, 3, 40, 24).to(dtype)
    processor = VaeImageProcessor()
    expected = processor.postprocess(values, output_type="pil")
    rows = pixels.pictures(processor.postprocess(values, output_type=output_type))
    assert [len(row) for row in rows] == [1, 1]
    for row, image in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(row[0], np.asarray(image))


@pytest.mark.parametrize("output_type", ["pt", "np", "pil"])
def test_frames(output_type: str) -> None:
    video = torch.rand(2, 3, 4, 16, 24) * 2 - 1
    processor = VideoProcessor()
    expected = processor.postprocess_video(video, output_type="pil")
    rows = pixels.pictures(processor.postprocess_video(video, output_type=output_type))
    assert [len(row) for row in rows] == [4, 4]
    for row, images in zip(rows, expected, strict=True):
        for frame, image in zip(row, images, strict=True):
            np.testing.assert_array_equal(frame, np.asarray(image))


def test_transparency_stays_and_grey_becomes_colour() -> None:
    assert pixels.pictures(torch.rand(1, 4, 8, 8))[0][0].shape == (8, 8, 4)
    grey = torch.rand(1, 1, 8, 8)
    picture = pixels.pictures(grey)[0][0]
    assert picture.shape == (8, 8, 3)
    assert (picture[..., 0] == picture[..., 2]).all()


def test_layers_of_a_row() -> None:
    rows = pixels.pictures([[torch.rand(4, 8, 8), torch.rand(4, 8, 8)]])
    assert [picture.shape for picture in rows[0]] == [(8, 8, 4)] * 2


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        pixels.pictures(None)


@pytest.mark.parametrize(("kind", "expected"), [("sd", "pt"), ("wan", "pt"), ("stableaudio", "np")])
def test_what_pipelines_are_asked_for(kind: str, expected: str, tiny_pipeline: Any) -> None:
    pipe: Any = tiny_pipeline(kind)
    assert pixels.output_type(pipe) == expected
