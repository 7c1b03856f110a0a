"""Custom pipelines: code of the user, trusted or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest

from tests.engines.diffusion.opening import Build, draw, loaded

CODE = """
from diffusers import FluxPipeline


class MyPipeline(FluxPipeline):
    TAG = "mine"
    strength_of_red = 1

    def __init__(self, scheduler, vae, text_encoder, tokenizer, text_encoder_2, tokenizer_2, transformer, tint="none",
                 image_encoder=None, feature_extractor=None):
        super().__init__(scheduler, vae, text_encoder, tokenizer, text_encoder_2, tokenizer_2, transformer)
        self.register_to_config(tint=tint)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "pipeline.py").write_text(CODE)
    return folder


def custom(model: Path, trusted: bool, **arguments: Any) -> Any:
    return loaded(
        model,
        diffusion_load_format="custom_pipeline",
        custom_pipeline_args=arguments,
        trust_remote_code=trusted,
    )


def test_a_custom_pipeline_and_its_arguments(code: Path, tiny_pipelines: Build) -> None:
    pipe = custom(tiny_pipelines("flux"), True, custom_pipeline=str(code), tint="red", strength_of_red=7)

    assert (type(pipe).__name__, pipe.TAG, pipe.config.tint, pipe.strength_of_red) == ("MyPipeline", "mine", "red", 7)
    assert draw(pipe).shape == (1, 64, 64, 3)


def test_code_that_comes_with_the_model(code: Path, tiny_pipelines: Build, tmp_path: Path) -> None:
    shutil.copytree(tiny_pipelines("flux"), tmp_path / "flux")
    shutil.copy(code / "pipeline.py", tmp_path / "flux")

    assert type(custom(tmp_path / "flux", True)).__name__ == "MyPipeline"


def test_code_is_not_run_unless_it_is_trusted(code: Path, tiny_pipelines: Build) -> None:
    (code / "pipeline.py").write_text("raise SystemExit('it ran')")

    with pytest.raises(ValueError, match=r"pipeline.py would run in this server.*--trust-remote-code"):
        custom(tiny_pipelines("flux"), False, custom_pipeline=str(code))


def test_an_installed_class(tiny_pipelines: Build) -> None:
    pipe = custom(tiny_pipelines("flux"), False, pipeline_class="diffusers.FluxImg2ImgPipeline")

    assert type(pipe) is diffusers.FluxImg2ImgPipeline


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "brings no pipeline.py"),
        ({"custom_pipeline": "nowhere"}, "must be a Python file, or a directory"),
        ({"pipeline_class": "FluxPipeline"}, "must be package.module.Class"),
        ({"pipeline_class": "diffusers.Flux"}, "cannot be imported"),
        ({"pipeline_class": "diffusers.ModelMixin"}, "no subclass of diffusers.DiffusionPipeline"),
        ({"pipeline_class": "diffusers.FluxPipeline", "custom_pipeline": "x"}, "name one"),
        ({"pipeline_class": "diffusers.FluxPipeline", "tint": "red"}, "neither an argument nor an attribute 'tint'"),
    ],
)
def test_wrong_custom_arguments(arguments: dict[str, str], message: str, tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match=message):
        custom(tiny_pipelines("flux"), True, **arguments)


@pytest.fixture
def with_own_class(code: Path, tiny_pipelines: Build, tmp_path: Path) -> Path:
    """A model whose index names a class of its own, in the default load format."""
    model = tmp_path / "own"
    shutil.copytree(tiny_pipelines("flux"), model)
    shutil.copy(code / "pipeline.py", model)
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps(index | {"_class_name": ["pipeline", "MyPipeline"]}))
    return model


def test_a_model_with_a_class_of_its_own(with_own_class: Path) -> None:
    assert type(loaded(with_own_class, trust_remote_code=True)).__name__ == "MyPipeline"


def test_a_models_own_class_is_not_run_unless_it_is_trusted(with_own_class: Path) -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        loaded(with_own_class)
