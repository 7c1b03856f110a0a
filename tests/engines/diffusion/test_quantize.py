from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.quantize import gguf_file, pipeline_config, plan, quantize_loaded
from tests.engines.diffusion.drawing import draw, given, weight_bytes
from tests.tiny_diffusion import open_pipeline

PARTS = {"transformer": "diffusers", "text_encoder": "transformers", "text_encoder_2": "transformers"}


@pytest.mark.parametrize(
    ("method", "share", "bound"), [("int8", 0.4, 0.1), ("int8_dynamic", 0.4, 0.1), ("fp8", 0.4, 0.15)]
)
def test_weights_shrink_and_the_picture_stays_near(
    method: str, share: float, bound: float, tiny_pipeline: Callable[[str], Any]
) -> None:
    pipe = tiny_pipeline("flux")
    before, size = draw(pipe), weight_bytes(pipe.transformer)
    [done] = quantize_loaded(pipe, given(quantization=method))
    assert done.startswith("transformer: weights")
    assert weight_bytes(pipe.transformer) < share * size
    difference = np.abs(draw(pipe) - before).mean()
    assert 0 < difference < bound


def test_weights_rest_in_float8(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before, size = draw(pipe), weight_bytes(pipe.transformer)
    list(quantize_loaded(pipe, given(diffusion_quantization_config={"transformer": "fp8_storage"})))
    assert weight_bytes(pipe.transformer) < 0.5 * size
    assert 0 < np.abs(draw(pipe) - before).mean() < 0.15


def test_parts_are_quantized_while_they_are_read(
    tiny_pipelines: Callable[[str], Path], tiny_pipeline: Callable[[str], Any]
) -> None:
    config = {"transformer": {"method": "int8", "ignored_layers": ["proj_out"]}, "text_encoder_2": "int8"}
    options = given(diffusion_quantization_config=config)
    pipe = open_pipeline(
        tiny_pipelines("flux"), quantization_config=pipeline_config(options, PARTS), torch_dtype=torch.bfloat16
    )
    plain = tiny_pipeline("flux").to(torch.bfloat16)
    for part in ("transformer", "text_encoder_2"):
        assert weight_bytes(getattr(pipe, part)) < 0.7 * weight_bytes(getattr(plain, part))
    assert weight_bytes(pipe.text_encoder) == weight_bytes(plain.text_encoder)
    assert type(pipe.transformer.proj_out.weight) is torch.nn.Parameter
    before = weight_bytes(pipe.transformer)
    assert len(list(quantize_loaded(pipe, options))) == 2
    assert weight_bytes(pipe.transformer) == before
    draw(pipe, steps=1)


def test_layers_can_be_left_out_afterwards(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = weight_bytes(pipe.transformer.proj_out)
    config = {"method": "int8", "ignored_layers": ["proj_out"]}
    list(quantize_loaded(pipe, given(diffusion_quantization_config=config)))
    assert weight_bytes(pipe.transformer.proj_out) == before


def test_a_gguf_file_is_the_denoiser() -> None:
    options = given(quantization="gguf", quantization_config={"gguf_model": "/m/q4.gguf"})
    assert gguf_file(options, PARTS) == ("transformer", "/m/q4.gguf")
    assert pipeline_config(options, PARTS) is None
    with pytest.raises(ValueError, match="a GGUF file holds one part"):
        gguf_file(options, {**PARTS, "transformer_2": "diffusers"})


def test_nothing_is_quantized_unasked() -> None:
    assert plan(given(), PARTS) == {}
    assert pipeline_config(given(), PARTS) is None
    assert gguf_file(given(), PARTS) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quantization": "mxfp4"}, "'mxfp4' cannot be had with diffusers; methods are int8"),
        ({"diffusion_quantization_config": {"unet": "int8"}}, "there is no part unet; parts are"),
        ({"diffusion_quantization_config": {"transformer": {"bits": 4}}}, "missing required field `method`"),
        ({"quantization": "gguf"}, "gguf_model and the method gguf belong together"),
        ({"quantization": "bitsandbytes", "quantization_config": {"bits": 3}}, "bits must be 4 or 8, got 3"),
        ({"quantization": "bnb"}, "needs an NVIDIA GPU, and there is none here; use int8 or fp8"),
    ],
)
def test_what_cannot_be_quantized(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        pipeline_config(given(**options), PARTS)
