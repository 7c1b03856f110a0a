from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A directory that looks like a language model."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    return str(directory)


@pytest.fixture
def speech_model(tmp_path: Path) -> str:
    """A directory that looks like a text-to-speech model."""
    directory = tmp_path / "voice"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "vits", "architectures": ["VitsModel"]}))
    return str(directory)


@pytest.fixture
def picture_model(tmp_path: Path) -> str:
    """A directory that looks like a diffusion model."""
    directory = tmp_path / "pictures"
    directory.mkdir()
    (directory / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    return str(directory)
