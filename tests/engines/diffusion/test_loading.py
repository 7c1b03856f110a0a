"""Loading: what is loaded draws what diffusers' own loading draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from app.engines.diffusion import memory
from tests import tiny_diffusion
from tests.engines.diffusion.opening import Build, draw, loaded


@pytest.mark.parametrize(
    "kind", ["sd", "sdxl", "sd3", "flux", "flux2klein", "qwenimage", "zimage", "wan", "wan22", "stableaudio"]
)
def test_a_pipeline_is_loaded_as_diffusers_loads_it(kind: str, tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines(kind))
    stock = tiny_diffusion.open_pipeline(tiny_pipelines(kind))

    assert type(pipe) is type(stock)
    assert np.array_equal(draw(pipe), draw(stock))


@pytest.mark.parametrize(
    ("kind", "task_type", "name"),
    [
        ("sd", "i2i", "StableDiffusionImg2ImgPipeline"),
        ("wan_ti2v", "i2v", "WanImageToVideoPipeline"),
        ("wan_ti2v", "t2v", "WanPipeline"),
    ],
)
def test_the_class_of_the_task_is_loaded(kind: str, task_type: str, name: str, tiny_pipelines: Build) -> None:
    assert type(loaded(tiny_pipelines(kind), task_type=task_type)).__name__ == name


def test_a_task_of_other_weights_is_refused(tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match="--task-type i2v: there is no pipeline"):
        loaded(tiny_pipelines("wan"), task_type="i2v")


def test_qwen_image_edit_is_loaded_without_torchvision(tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("qwenimage_edit"))

    assert type(pipe) is diffusers.QwenImageEditPipeline
    prepared = pipe.processor(text=["<|image_pad|> make it green"], images=[np.zeros((56, 56, 3), np.uint8)])
    assert {"input_ids", "pixel_values", "image_grid_thw"} <= prepared.keys()


def test_progress_says_what_the_weights_need(tiny_pipelines: Build) -> None:
    lines: list[str] = []

    loaded(tiny_pipelines("flux"), lines.append)

    assert lines[0].startswith("the weights need 0.0 GiB (transformer 0.0, ")
    assert lines[1] == "loading FluxPipeline in float32 on cpu, 4 threads for weight files"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(dtype: str, tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("sd"), dtype=dtype)

    assert pipe.unet.dtype == pipe.text_encoder.dtype == pipe.vae.dtype == getattr(torch, dtype)


def test_dtype_by_component_from_the_load_arguments(tiny_pipelines: Build) -> None:
    pipe = loaded(
        tiny_pipelines("sd"), diffusers_load_kwargs={"dtype": {"vae": "float32", "default": "torch.bfloat16"}}
    )

    assert (pipe.vae.dtype, pipe.unet.dtype) == (torch.float32, torch.bfloat16)


def test_two_dtypes_contradict_each_other(tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match="name different dtypes"):
        loaded(tiny_pipelines("sd"), dtype="float16", diffusers_load_kwargs={"dtype": "bfloat16"})


def test_a_class_in_place_of_the_models_own(tiny_pipelines: Build) -> None:
    assert type(loaded(tiny_pipelines("flux"), model_class_name="FluxImg2ImgPipeline")) is diffusers.FluxImg2ImgPipeline


def test_a_class_that_does_not_exist(tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match="no pipeline class 'FluxPipelin'; did you mean FluxPipeline"):
        loaded(tiny_pipelines("flux"), model_class_name="FluxPipelin")


def test_a_directory_without_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"neither a model_index.json nor a modular_model_index.json"):
        loaded(tmp_path)


def test_no_guardrails(tmp_path: Path) -> None:
    directory = guarded(tmp_path)

    assert loaded(directory).safety_checker is not None
    pipe = loaded(directory, no_guardrails=True)

    assert pipe.safety_checker is None
    assert pipe.config.requires_safety_checker is False


def guarded(directory: Path) -> Path:
    """Stable Diffusion with a safety checker of a few weights."""
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPImageProcessor

    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
    }
    pipe = tiny_diffusion.stable_diffusion()
    pipe.register_modules(
        safety_checker=StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision, projection_dim=16)),
        feature_extractor=CLIPImageProcessor(crop_size=32, size={"shortest_edge": 32}),
    )
    pipe.save_pretrained(directory)
    return directory


def test_offloaded_pipelines_stay_in_host_memory(tiny_pipelines: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("moved")

    monkeypatch.setattr(diffusers.DiffusionPipeline, "to", refuse)

    loaded(tiny_pipelines("sd"), enable_cpu_offload=True)
    with pytest.raises(AssertionError, match="moved"):
        loaded(tiny_pipelines("sd"))


def test_quantized_while_it_is_read(tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("flux"), quantization="int8", dtype="bfloat16")

    assert type(pipe.transformer.transformer_blocks[0].attn.to_q.weight).__name__ == "Int8Tensor"
    assert np.isfinite(draw(pipe)).all()


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    tiny_pipelines: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 100_000)

    with pytest.raises(ValueError, match=r"the weights need .* this machine has 0.0 GiB free"):
        loaded(tiny_pipelines("sd"))
