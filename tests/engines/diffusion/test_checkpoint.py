from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest

from app.engines.diffusion.checkpoint import find_class, init_parameters, read_checkpoint


def test_a_pipeline_on_disk(tiny_pipelines: Callable[[str], Path]) -> None:
    found = read_checkpoint(tiny_pipelines("sd"))

    assert found.class_name == "StableDiffusionPipeline"
    assert found.components.keys() == {"vae", "text_encoder", "tokenizer", "unet", "scheduler"}
    assert found.models() == {"vae": "diffusers", "text_encoder": "transformers", "unet": "diffusers"}
    assert found.component_class("unet") is diffusers.UNet2DConditionModel
    assert found.part("unet") == tiny_pipelines("sd") / "unet"


def test_components_of_a_pipelines_own_module_and_of_its_own_code(tmp_path: Path) -> None:
    index = {
        "_class_name": ["pipeline", "Mine"],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "mine": ["my_code", "Mine"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))

    found = read_checkpoint(tmp_path)

    assert found.class_name == ""
    assert found.component_class("safety_checker").__name__ == "StableDiffusionSafetyChecker"
    assert found.component_class("mine") is None
    assert found.part("mine") == tmp_path


def test_a_directory_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no model_index.json"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FluxPipelines", "did you mean FluxPipeline"),
        ("UNet2DModel", "has no pipeline class 'UNet2DModel'"),
        ("SpectrogramDiffusionPipeline", "needs .*note_seq, and not all of it is installed here"),
    ],
)
def test_classes_that_cannot_be_had(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_class(name)


def test_what_a_constructor_takes() -> None:
    assert init_parameters(diffusers.FluxPipeline).keys() >= {"scheduler", "transformer", "image_encoder"}
    assert "self" not in init_parameters(diffusers.FluxPipeline)
