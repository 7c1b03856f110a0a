from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.settings.detection import detect, is_hub_id
from app.settings.resolve import examine


def directory(path: Path, **files: object) -> str:
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_directory_with_a_config_is_a_language_model(tmp_path: Path) -> None:
    assert detect(directory(tmp_path, config={"model_type": "llama"}), None) == "llm"


@pytest.mark.parametrize("model", ["demo", "stub"])
def test_built_in_models(model: str) -> None:
    assert detect(model, None) == model
    assert not is_hub_id(model)


@pytest.mark.parametrize("model", ["gpt2", "Qwen/Qwen3-0.6B", "org/some_model.v2"])
def test_hub_ids(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id(model)
    assert detect(model, None) == "llm"


def test_an_existing_directory_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text('{"model_type": "x"}')
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("org/model")
    assert detect("org/model", None) == "llm"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it has neither a config.json nor a model_index.json"),
        ({"config": "{"}, "config.json cannot be read"),
        ({"config": []}, "config.json cannot be read"),
        ({"config": {}}, "names neither architectures nor a model_type"),
        ({"model_index": {"_class_name": "FluxPipeline"}}, r"is a diffusion model \(FluxPipeline\)"),
    ],
)
def test_directories_that_cannot_be_served(files: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        detect(directory(tmp_path, **files), None)


def test_a_missing_directory_is_named() -> None:
    with pytest.raises(ValueError, match="there is no model at /models/nope"):
        detect("/models/nope", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.gguf", "is a GGUF file, which vLLM does not read by itself"),
        ("model.safetensors", "a single file of weights, which only diffusion models can be: .* part 4"),
        ("model.txt", "is a file; a model is a directory, a hub id, or one file of weights"),
    ],
)
def test_single_files(name: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(ValueError, match=message):
        detect(str(file), None)


@pytest.mark.parametrize(
    ("files", "pipeline"),
    [
        ({"config": {"model_type": "qwen2_5_omni"}}, "qwen2_5_omni"),
        ({"config": {"model_type": "qwen3_omni_moe"}}, "qwen3_omni_moe"),
        ({"config": {"model_type": "qwen3_tts"}}, "qwen3_tts"),
        ({"config": {"model_type": "bagel"}}, "bagel"),
        ({"model_index": {"_class_name": "WanPipeline"}, "config": {"model_type": "x"}}, "wan"),
        ({"model_index": {"_class_name": "GlmImagePipeline"}}, "glm_image"),
        ({"modular_model_index": {"_class_name": "FluxModularPipeline"}}, "diffusion"),
    ],
)
def test_models_of_pipelines_that_cannot_run_yet(files: dict[str, object], pipeline: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"the pipeline {pipeline} cannot run yet: it comes with part \d"):
        detect(directory(tmp_path, **files), None)


def test_the_text_of_an_omni_model_can_be_served(tmp_path: Path) -> None:
    model = directory(tmp_path, config={"model_type": "qwen2_5_omni"})
    with pytest.raises(ValueError, match=r"--deploy-config llm\.yaml serves its text"):
        detect(model, None)
    assert examine({"model": model, "deploy_config": "llm.yaml"}, {}).settings.pipeline == "llm"


def test_a_strange_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="neither a directory here nor a hub id"):
        detect("what is this", None)


@pytest.mark.parametrize(
    ("model", "pipeline", "message"),
    [
        ("demo", "lmm", r"unknown pipeline lmm \(did you mean llm\?\)"),
        ("demo", "llm", "the pipeline llm does not serve the model demo"),
        ("gpt2", "demo", "the pipeline demo does not serve the model gpt2"),
    ],
)
def test_the_deploy_file_cannot_choose_a_wrong_pipeline(model: str, pipeline: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detect(model, pipeline)
