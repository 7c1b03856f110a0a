"""--forced-aligner: one more stage behind those that speak, and what is wrong with what was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.console.plan import graph
from app.settings import platforms
from app.settings.problems import ConfigError
from app.settings.resolve import examine
from app.settings.schema import Settings

HUB = "Qwen/Qwen3-ForcedAligner-0.6B"


@pytest.fixture
def aligner(tmp_path: Path) -> str:
    """A directory that looks like a forced aligner."""
    return directory(tmp_path, {"model_type": "qwen3_asr", "thinker_config": {"classify_num": 5000}})


def directory(tmp_path: Path, config: dict[str, Any]) -> str:
    place = tmp_path / "aligner"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def resolved(model: str, **typed: Any) -> Settings:
    return examine({"model": model, **typed}, {}, source="flag").settings


def problems(model: str, **typed: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(model, **typed)
    return caught.value.problems


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "aligner.yaml"
    file.write_text(text)
    return str(file)


def test_it_follows_the_stages_of_the_pipeline_and_shares_a_device(speech_model: str, aligner: str) -> None:
    settings = resolved(speech_model, forced_aligner=aligner, stage_overrides={"0": {"devices": "cpu"}})
    voice, stage = settings.stages
    assert (stage.stage_id, stage.name, stage.kind, stage.model_stage) == (1, "aligner", "llm", "aligner")
    assert (stage.model, stage.devices, stage.entry, stage.outputs, stage.sources) == (aligner, "cpu", False, [], [])
    assert stage.engine_args["runner"] == "pooling"
    assert (stage.engine_args["dtype"], stage.engine_args["max_model_len"]) == ("float32", 4096)
    assert "gpu_memory_utilization" not in stage.engine_args
    assert stage.per_platform == ["dtype", "gpu_memory_utilization"]
    assert voice.entry
    assert graph(settings)[-1] == "           [1 aligner: llm on cpu] (is asked for the times of words)"
    assert settings.origins["stages[1].model"] == "flag --forced-aligner"
    assert settings.origins["stages[1].devices"] == "devices of stage 0 (speech)"


def test_on_a_gpu_it_takes_a_part_of_one(speech_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current", lambda: "cuda")
    stage = resolved(speech_model, forced_aligner=HUB, forced_aligner_device="2").stages[1]
    assert stage.devices == "2"
    assert {name: stage.engine_args[name] for name in ("dtype", "max_model_len", "gpu_memory_utilization")} == {
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.3,
    }


def test_a_file_sizes_it_and_the_flag_names_the_model(speech_model: str, aligner: str, tmp_path: Path) -> None:
    file = written(tmp_path, "model: org/other\nrunner: pooling\nmax_model_len: 2048\ndtype: null\nmax_num_seqs: 4\n")
    settings = resolved(speech_model, forced_aligner_config=file, forced_aligner=aligner)
    stage = settings.stages[1]
    assert (stage.model, stage.engine_args["max_model_len"], stage.engine_args["dtype"]) == (aligner, 2048, "float32")
    assert settings.origins["stages[1].engine_args.max_num_seqs"] == file
    assert resolved(speech_model, forced_aligner_config=file).stages[1].model == "org/other"


def test_flags_for_other_stages_do_not_reach_it(aligner: str) -> None:
    *_, stage = resolved(
        "demo", forced_aligner=aligner, max_model_len=512, stage_overrides={"2": {"dtype": "float16"}}
    ).stages
    assert (stage.stage_id, stage.engine_args["max_model_len"]) == (3, 4096)


def test_what_is_wrong_is_told(speech_model: str, picture_model: str, aligner: str, tmp_path: Path) -> None:
    assert problems(speech_model, forced_aligner_device="0") == [
        f"flag --forced-aligner-device: there is no forced aligner; name one with --forced-aligner {HUB}"
    ]
    assert problems(picture_model, forced_aligner=aligner) == [
        "flag --forced-aligner: no stage of this pipeline reads texts out, so there are no words to be timed"
    ]
    assert problems(speech_model, forced_aligner="./nowhere") == [
        "flag --forced-aligner: there is no model at nowhere: the directory does not exist"
    ]
    file = written(
        tmp_path,
        "max_modellen: 1\nrunner: generate\nhf_overrides: {}\nmax_num_seqs: many\nengine_args: {runner: draft}\n",
    )
    assert problems(speech_model, forced_aligner_config=file) == [
        f"{file}: hf_overrides: is set by the server",
        f"{file}: max_modellen: unknown key (did you mean max_model_len?)",
        f"{file}.max_num_seqs: expected a whole number, got 'many'",
        f"{file}: runner: a forced aligner runs as pooling, not 'draft'",
        f"flag --forced-aligner-config: no model is named: add model: {HUB}, or --forced-aligner {HUB}",
    ]


def test_a_variable_for_another_server_is_only_told_of(picture_model: str) -> None:
    found = examine({"model": picture_model}, {"OMNI_FORCED_ALIGNER": HUB})
    assert [stage.name for stage in found.settings.stages] == ["diffusion"]
    assert found.warnings == [
        "env OMNI_FORCED_ALIGNER: no stage of this pipeline reads texts out, so there are no words to be timed"
    ]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "qwen3_asr", "thinker_config": {"classify_num": None}}, "is no forced aligner"),
        ({"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForTokenClassification"]}, "layout of transformers"),
    ],
)
def test_another_model_is_refused(speech_model: str, tmp_path: Path, config: dict[str, Any], told: str) -> None:
    (problem,) = problems(speech_model, forced_aligner=directory(tmp_path, config))
    assert told in problem
    assert HUB in problem
