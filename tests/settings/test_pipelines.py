"""The pipelines of omni models: which checkpoints they serve, and what becomes of their deploy files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings import platforms
from app.settings.deploy import SHIPPED
from app.settings.pipelines import PIPELINES, by_config
from app.settings.resolve import ConfigError, Resolution, examine

OMNI = ("qwen2_5_omni", "qwen3_omni_moe")


@pytest.fixture
def omni(tmp_path: Path) -> Any:
    """Makes a directory that looks like an omni model, and resolves it with a deploy file or typed settings."""

    def resolve(kind: str = "qwen3_omni_moe", deploy: str = "", **typed: Any) -> Resolution:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "talker_config": {}}))
        if deploy:
            (tmp_path / "x.yaml").write_text(deploy)
            typed["deploy_config"] = str(tmp_path / "x.yaml")
        return examine({"model": str(tmp_path), **typed}, {}, source="flag")

    return resolve


@pytest.mark.parametrize("kind", OMNI)
def test_an_omni_model_runs_as_three_stages(kind: str, omni: Any) -> None:
    settings = omni(kind).settings
    assert settings.pipeline == kind
    told = [(x.name, x.kind, x.model_stage, x.entry, x.outputs, x.sources, x.async_chunk) for x in settings.stages]
    assert told == [
        ("thinker", "llm", "thinker", True, ["text"], [], True),
        ("talker", "llm", "talker", False, [], [0], True),
        ("code2wav", "generation", "", False, ["audio"], [1], True),
    ]


@pytest.mark.parametrize(
    ("config", "pipeline"),
    [
        ({"architectures": ["Qwen2_5OmniModel"]}, "qwen2_5_omni"),
        ({"architectures": ["Qwen2_5OmniForConditionalGeneration"]}, "qwen2_5_omni"),
        ({"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "own"}, "qwen3_omni_moe"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "llm"),
        ({"architectures": "Qwen2_5OmniModel"}, "llm"),
        ({"model_type": "qwen2_5_omni_thinker"}, "llm"),
    ],
)
def test_models_are_known_by_their_classes_too(config: dict[str, Any], pipeline: str) -> None:
    assert by_config({"talker_config": {}, **config}).pipeline.name == pipeline


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"talker_config": {}, "enable_audio_output": False}, "enable_audio_output is false in its config.json"),
        ({"enable_audio_output": True}, "its config.json has no talker_config"),
        ({"talker_config": None}, "its config.json has no talker_config"),
    ],
)
@pytest.mark.parametrize("kind", OMNI)
def test_a_checkpoint_without_a_talker_is_a_language_model(
    kind: str, config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Qwen3-Omni's Thinking and Captioner are such."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    resolution = examine({"model": str(tmp_path)}, {})
    assert resolution.settings.pipeline == "llm"
    assert resolution.settings.stages[0].model_stage == ""
    assert resolution.warnings == [
        f"{tmp_path}: it answers in text only: {why}; it is served as a language model (pipeline llm)"
    ]


def test_who_wants_text_only_says_so(omni: Any) -> None:
    resolution = omni(deploy_config="llm.yaml")
    assert (resolution.settings.pipeline, resolution.warnings) == ("llm", [])


def test_no_file_makes_one_stage_another(omni: Any) -> None:
    with pytest.raises(ConfigError, match=r"stages\[0\].model_stage: the pipeline decides it, no file can; remove it"):
        omni(deploy="stages: [{stage_id: 0, model_stage: talker}]")
    with pytest.raises(ConfigError, match="kind of stage 2 is 'generation' in the pipeline qwen3_omni_moe and cannot"):
        omni(deploy="stages: [{stage_id: 2, kind: speech}]")


def test_a_connector_says_how_sound_is_cut(omni: Any) -> None:
    chunks = {"initial_codec_chunk_frames": 4, "codec_chunk_frames": 25, "codec_left_context_frames": 25}
    settings = omni().settings
    assert settings.stages[2].engine_args.items() >= chunks.items()
    assert settings.origins["stages[2].engine_args.codec_chunk_frames"] == "qwen3_omni_moe.yaml"
    own = omni(deploy="stages: [{stage_id: 2, engine_args: {codec_chunk_frames: 50}}]").settings.stages[2].engine_args
    assert own["codec_chunk_frames"] == 50
    connector = "connectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 10}}}\n"
    file = connector + "stages: [{stage_id: 2, input_connectors: {from_stage_1: c}}]"
    assert omni(deploy=file).settings.stages[2].engine_args["codec_chunk_frames"] == 10
    with pytest.raises(ConfigError, match="codec_chunk_frames of c are for vocoders, which stage 1 is none"):
        omni(deploy=connector + "stages: [{stage_id: 1, input_connectors: {from_stage_0: c}}]")


def test_what_a_vocoder_cannot_have_is_told_before_anything_starts(omni: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"stage 2 .code2wav.: engine argument 'codec_chunk_frame' is unknown .* mean"
    ):
        omni(deploy="stages: [{stage_id: 2, engine_args: {codec_chunk_frame: 50}}]")
    with pytest.raises(ConfigError, match="default_sampling_params: a vocoder"):
        omni(deploy="stages: [{stage_id: 2, default_sampling_params: {top_k: 1}}]")
    with pytest.raises(ConfigError, match="stage 2 is of kind generation, which has no setting max_model_len"):
        omni(deploy="stages: [{stage_id: 2, max_model_len: 100}]")


def test_what_a_talker_cannot_sample_with(omni: Any) -> None:
    talker = omni(deploy="stages: [{stage_id: 1, default_sampling_params: {seed: 3}}]").settings.stages[1]
    assert talker.default_sampling_params["seed"] == 3
    with pytest.raises(ConfigError, match=r"stage 1 \(talker\): default_sampling_params: .* no parameter 'min_p'"):
        omni(deploy="stages: [{stage_id: 1, default_sampling_params: {min_p: 0.1}}]")


def test_stages_can_wait_for_all_of_their_input(omni: Any) -> None:
    assert [stage.async_chunk for stage in omni(deploy="async_chunk: false").settings.stages[1:]] == [False, False]
    assert [stage.async_chunk for stage in omni(async_chunk=False).settings.stages[1:]] == [False, False]
    one = omni(deploy="stages: [{stage_id: 1, async_chunk: false}]").settings.stages
    assert [stage.async_chunk for stage in one[1:]] == [False, True]


@pytest.mark.parametrize("file", [f"{kind}{gpus}.yaml" for kind in OMNI for gpus in ("", "_3gpu")])
def test_what_the_files_give_to_a_gpu_fits(file: str, omni: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current", lambda: "cuda")
    resolution = omni(file.removesuffix(".yaml").removesuffix("_3gpu"), deploy_config=file)
    assert resolution.warnings == []
    shares = [stage.engine_args["gpu_memory_utilization"] for stage in resolution.settings.stages[:2]]
    apart = "3gpu" in file
    assert [stage.devices for stage in resolution.settings.stages] == (["0", "1", "2"] if apart else ["0", "0", "0"])
    assert max(shares) < 0.95 if apart else sum(shares) < 0.9


@pytest.mark.parametrize("kind", OMNI)
def test_a_cpu_has_no_shares(kind: str, omni: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current", lambda: "cpu")
    resolution = omni(kind)
    assert resolution.warnings == []
    assert {stage.devices for stage in resolution.settings.stages} == {"cpu"}
    for stage in resolution.settings.stages[:2]:
        assert "gpu_memory_utilization" not in stage.engine_args
        assert stage.engine_args["enforce_eager"]


def test_shares_of_one_gpu_add_up(omni: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current", lambda: "cuda")
    [warning] = omni(gpu_memory_utilization=0.6).warnings
    assert warning == (
        "device 0 is given to several stages whose gpu_memory_utilization is more than 1 together (thinker 0.6, talker "
        "0.6): the last of them will find too little memory"
    )
    assert omni(gpu_memory_utilization=0.5).warnings == []
    monkeypatch.setattr(platforms, "current", lambda: "cpu")
    assert omni(gpu_memory_utilization=0.6).warnings == []


def test_every_pipeline_that_talks_has_a_file_for_three_gpus() -> None:
    assert {f"{x.name}_3gpu" for x in PIPELINES.values() if x.talks} <= {file.stem for file in SHIPPED.glob("*.yaml")}
