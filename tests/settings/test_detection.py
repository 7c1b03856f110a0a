from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.engines.speech.detect import FAMILIES
from app.settings.detection import detect, is_hub_id
from app.settings.inspection import Hints
from app.settings.pipelines import SPEECH_TYPES, Found, by_model_type
from app.settings.resolve import ConfigError, examine


def directory(path: Path, **files: object) -> str:
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_directory_with_a_config_is_a_language_model(tmp_path: Path) -> None:
    assert detect(directory(tmp_path, config={"model_type": "llama"}), None).pipeline.name == "llm"


@pytest.mark.parametrize("model", ["demo", "stub"])
def test_built_in_models(model: str) -> None:
    assert detect(model, None).pipeline.name == model
    assert not is_hub_id(model)


@pytest.mark.parametrize("model", ["gpt2", "Qwen/Qwen3-0.6B", "org/some_model.v2"])
def test_hub_ids(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id(model)
    assert detect(model, None).pipeline.name == "llm"


def test_an_existing_directory_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text('{"model_type": "x"}')
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("org/model")
    assert detect("org/model", None).pipeline.name == "llm"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it has neither a config.json nor a model_index.json"),
        ({"config": "{"}, "config.json cannot be read"),
        ({"config": []}, "config.json cannot be read"),
        ({"config": {}}, "names neither architectures nor a model_type"),
        ({"model_index": {}}, "is a diffusers model whose index names no _class_name"),
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
        ("model.gguf", "is a GGUF file. A language model is served from the directory of the original model; a diffus"),
        ("model.txt", "is a file; a model is a directory, a hub id, or one file of weights"),
    ],
)
def test_single_files_that_cannot_be_served(name: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(ValueError, match=message):
        detect(str(file), None)


@pytest.mark.parametrize(
    ("model_type", "why", "meanwhile"),
    [
        ("qwen3_tts", "neither vLLM 0.32 nor transformers 5.19 has the model", "speech models of type vits, speecht5"),
        ("bagel", "none draws with the model", "--deploy-config llm.yaml serves its text"),
    ],
)
def test_models_that_no_library_runs(model_type: str, why: str, meanwhile: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"the pipeline {model_type} cannot run: .*{why}; {meanwhile}"):
        detect(directory(tmp_path, config={"model_type": model_type}), None)


def test_glm_image_is_one_diffusion_stage(tmp_path: Path) -> None:
    model = directory(tmp_path, model_index={"_class_name": "GlmImagePipeline"})
    [stage] = examine({"model": model}, {}).settings.stages
    assert (stage.kind, stage.outputs) == ("diffusion", ["image"])


@pytest.mark.parametrize("model_type", SPEECH_TYPES)
def test_a_text_to_speech_model_is_known_by_its_type(model_type: str, tmp_path: Path) -> None:
    model = directory(tmp_path, config={"model_type": model_type})
    settings = examine({"model": model}, {}).settings
    assert settings.pipeline == "speech"
    assert [(stage.kind, stage.outputs) for stage in settings.stages] == [("speech", ["audio"])]


def test_the_types_of_speech_models_are_those_of_the_engine() -> None:
    assert set(SPEECH_TYPES) == set(FAMILIES) - {"hibari"}


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


@pytest.mark.parametrize(
    ("files", "pipeline", "class_name"),
    [
        ({"model_index": {"_class_name": "FluxPipeline"}}, "diffusion", "FluxPipeline"),
        ({"model_index": {"_class_name": "WanPipeline"}, "config": {"model_type": "x"}}, "wan", "WanPipeline"),
        ({"model_index": {"_class_name": ["pipeline", "OwnPipeline"]}}, "diffusion", "OwnPipeline"),
        ({"modular_model_index": {"_class_name": "FluxModularPipeline"}}, "diffusion", "FluxModularPipeline"),
    ],
)
def test_a_directory_with_an_index_is_a_diffusion_model(
    files: dict[str, object], pipeline: str, class_name: str, tmp_path: Path
) -> None:
    found = detect(directory(tmp_path, **files), None)
    assert (found.pipeline.name, found.class_name) == (pipeline, class_name)
    assert detect(str(tmp_path), "diffusion").class_name == class_name
    forced = detect(str(tmp_path), None, hints=Hints("WanVACEPipeline"))
    assert (forced.pipeline.name, forced.class_name) == ("wan", "WanVACEPipeline")


def test_a_class_name_does_not_make_a_language_model_a_diffusion_model(model: str) -> None:
    assert detect(model, None, hints=Hints("FluxPipeline")).pipeline.name == "llm"
    with pytest.raises(ConfigError, match="flag --model-class-name: no stage of this pipeline takes it"):
        examine({"model": model, "model_class_name": "FluxPipeline"}, {}, source="flag")


def test_without_the_hub_a_class_name_tells_what_a_hub_id_is() -> None:
    def language_model(*_: str) -> Found:
        return by_model_type("llama")

    hints = Hints("StableAudioPipeline")
    assert detect("org/unknown", None, lambda *_: None, hints).pipeline.name == "diffusion"
    assert detect("org/unknown", None, language_model, hints).pipeline.name == "llm"


@pytest.mark.parametrize(
    ("class_name", "output"),
    [
        ("StableDiffusionPipeline", "image"),
        ("QwenImageEditPlusPipeline", "image"),
        ("Cosmos2TextToImagePipeline", "image"),
        ("OwnThing", "image"),
        ("LTXImageToVideoPipeline", "video"),
        ("WanModularPipeline", "video"),
        ("StableAudio3Pipeline", "audio"),
        ("MusicLDMPipeline", "audio"),
    ],
)
def test_the_class_tells_what_the_stage_makes(class_name: str, output: str, tmp_path: Path) -> None:
    model = directory(tmp_path, model_index={"_class_name": class_name})
    [stage] = examine({"model": model}, {}).settings.stages
    assert (stage.kind, stage.outputs) == ("diffusion", [output])


@pytest.mark.parametrize("source", ["flag", "override", "file"])
def test_the_class_that_is_asked_for_decides(source: str, tmp_path: Path) -> None:
    model = directory(tmp_path, model_index={"_class_name": "StableDiffusionPipeline"})
    stage = {"model_class_name": "LTXPipeline"}
    (tmp_path / "x.yaml").write_text(json.dumps({"stages": [{"stage_id": 0, **stage}]}))
    typed = {
        "flag": stage,
        "override": {"stage_overrides": {"0": stage}},
        "file": {"deploy_config": str(tmp_path / "x.yaml")},
    }[source]
    settings = examine({"model": model, **typed}, {}, source="flag").settings
    assert (settings.pipeline, settings.stages[0].outputs) == ("diffusion", ["video"])


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt", ".gguf"])
def test_a_single_file_gets_the_rest_from_the_directory_of_its_model(suffix: str, tmp_path: Path) -> None:
    config = directory(tmp_path, model_index={"_class_name": "WanPipeline"})
    file = tmp_path / f"model{suffix}"
    file.touch()
    settings = examine({"model": str(file), "diffusers_load_kwargs": {"config": config}}, {}).settings
    assert (settings.pipeline, settings.stages[0].model) == ("wan", str(file))


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_a_single_file_without_that_directory_is_told_how(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"flux{suffix}"
    file.touch()
    typed = {"model": str(file), "model_class_name": "FluxPipeline"}
    with pytest.raises(
        ConfigError, match=r"is one file of weights; --diffusers-load-kwargs '{\"config\": \"DIR\"}' says"
    ):
        examine(typed, {})
    with pytest.raises(ConfigError, match="config is the directory of the pipeline; there is none at org/flux"):
        examine({**typed, "diffusers_load_kwargs": {"config": "org/flux"}}, {})
