"""Pipelines that a deploy file makes up: stages with models of their own, and the edges between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.resolve import ConfigError, examine
from app.settings.schema import Settings

TEXT = "{stage_id: 0, name: text, kind: llm, model: demo}"


def custom(directory: Path, *stages: str, top: str = "", **typed: Any) -> Settings:
    file = directory / "mine.yaml"
    file.write_text("\n".join(["pipeline: custom", top, "stages:", *(f"  - {stage}" for stage in stages)]))
    return examine({"deploy_config": str(file), **typed}, {}, source="flag").settings


def problems(directory: Path, *stages: str, top: str = "", **typed: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        custom(directory, *stages, top=top, **typed)
    return [problem.replace(f"{directory}/", "") for problem in caught.value.problems]


def test_stages_have_their_own_models_and_edges(model: str, speech_model: str, tmp_path: Path) -> None:
    settings = custom(
        tmp_path,
        f"{{stage_id: 0, name: text, kind: llm, model: {model}, max_model_len: 2k}}",
        f"{{stage_id: 1, name: voice, kind: speech, model: {speech_model}, sources: [text], input_timeout_s: 20}}",
    )
    text, voice = settings.stages
    assert (settings.model, settings.served_model_names, settings.pipeline) == ("mine", ["mine"], "custom")
    assert (text.kind, text.model, text.outputs, text.engine_args) == ("llm", model, ["text"], {"max_model_len": 2000})
    assert (voice.kind, voice.model, voice.outputs) == ("speech", speech_model, ["audio"])
    assert (voice.sources, voice.async_chunk, voice.input_timeout_s, voice.entry) == ([0], True, 20, True)
    assert settings.origins["stages[1].model"] == f"{tmp_path}/mine.yaml:5"
    assert settings.origins["model"] == "flag --deploy-config"


def test_a_model_of_the_command_line_is_for_stages_that_name_none(model: str, tmp_path: Path) -> None:
    settings = custom(
        tmp_path,
        "{stage_id: 0, kind: llm}",
        "{stage_id: 1, name: speech, kind: speech, model: demo, sources: 0}",
        model=model,
        served_model_name=["mine", "yours"],
    )
    assert [stage.model for stage in settings.stages] == [model, "demo"]
    assert (settings.model, settings.served_model_names) == (model, ["mine", "yours"])
    assert problems(tmp_path, TEXT, model=model) == [
        "flag --model: no stage takes model: each names a model of its own"
    ]


def test_only_a_file_of_that_pipeline_names_models(model: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"stages: [{{stage_id: 0, model: {model}}}]")
    with pytest.raises(ConfigError, match=r"no model: set OMNI_MODEL .*; only a deploy file of `pipeline: custom`"):
        examine({"deploy_config": str(file)}, {})
    with pytest.raises(ConfigError, match=r"x\.yaml:1: model: the stages of the pipeline llm have the model that the"):
        examine({"deploy_config": str(file), "model": model}, {})


def test_a_prompt_is_written_by_another_stage(picture_model: str, tmp_path: Path) -> None:
    settings = custom(
        tmp_path,
        "{stage_id: 3, name: writer, kind: llm, model: demo, entry: false}",
        f"{{stage_id: 7, kind: diffusion, model: {picture_model}, sources: [3], prompt_template: 'Draw {{prompt}}!'}}",
    )
    writer, painter = settings.stages
    assert (writer.entry, painter.name, painter.outputs) == (False, "stage7", ["image"])
    assert (painter.sources, painter.async_chunk, painter.prompt_template) == ([3], False, "Draw {prompt}!")


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (["{stage_id: 0, model: demo}"], "stage 0 says no kind: llm, diffusion, speech, policy, stub"),
        (
            ["{stage_id: 0, kind: tts, model: demo}"],
            "mine.yaml: stages[0].kind: expected one of llm, diffusion, speech",
        ),
        (["{stage_id: 0, name: a, kind: llm}"], "stage 0 (a) names no model"),
        (["{stage_id: 0, kind: llm, model: /nope}"], "there is no model at /nope: the directory does not exist"),
        (["{stage_id: 0, kind: llm, model: demo, outputs: [audio]}"], "by its kind, llm, and cannot become ['audio']"),
        ([TEXT, "{stage_id: 1, name: text, kind: speech, model: demo}"], "two stages have the name text"),
        (
            [TEXT, "{stage_id: 1, name: v, kind: speech, model: demo, sources: [txet]}"],
            "mine.yaml:5: stage 1 (v) has no source txet (did you mean text?)",
        ),
        (
            [TEXT, "{stage_id: 1, name: v, kind: speech, model: demo, sources: [5]}"],
            "stage 1 (v) has no source 5; the others are 0 (text)",
        ),
        (
            [TEXT, "{stage_id: 1, kind: speech, model: demo, sources: [{a: 1}]}"],
            "mine.yaml: stages[1].sources: expected ids or names of stages, got [{'a': 1}]",
        ),
        (
            ["{stage_id: 0, name: a, kind: llm, model: demo, sources: [0]}"],
            "stages feed each other in a circle: 0 <- 0",
        ),
        (
            [TEXT, "{stage_id: 1, name: b, kind: llm, model: demo, entry: false, sources: [0]}"],
            "stage 1 (b): a stage of kind llm answers requests, not what another stage makes: remove its sources",
        ),
        (
            ["{stage_id: 0, name: a, kind: speech, model: demo, entry: false}"],
            "stage 0 (a): no request comes to it: set entry: true, or name the stages that feed it under sources",
        ),
        (
            [TEXT, "{stage_id: 1, name: b, kind: llm, model: demo}"],
            "stage 0 (text) and stage 1 (b) answer the same requests (text): a pipeline has one stage for each",
        ),
        (
            [
                "{stage_id: 0, name: a, kind: llm, model: demo, entry: false}",
                "{stage_id: 1, name: b, kind: speech, model: demo, sources: [a]}",
            ],
            "stage 1 (b): its source stage 0 (a) must be an entry, as chats begin there: remove entry: false",
        ),
        (
            [
                "{stage_id: 0, name: a, kind: speech, model: demo}",
                "{stage_id: 1, name: b, kind: speech, model: demo, entry: false, sources: [a]}",
            ],
            "stage 1 (b): it needs text, but its source stage 0 (a) makes audio",
        ),
        (
            [
                TEXT,
                "{stage_id: 1, name: w, kind: llm, model: demo, entry: false}",
                "{stage_id: 2, name: v, kind: speech, model: demo, sources: [text, w]}",
            ],
            "stage 2 (v): it can have one source, not 2",
        ),
        (
            [TEXT, "{stage_id: 1, name: v, kind: speech, model: demo, sources: [0], prompt_template: '{prompt}'}"],
            "stage 1 (v): mine.yaml:5: prompt_template is for stages of kind diffusion; one of kind speech takes what",
        ),
        (
            [TEXT, "{stage_id: 1, name: v, kind: generation, model: demo, sources: [0]}"],
            "stage 1 (v): a stage of kind generation is part of a model that talks, and such models have their own pip",
        ),
        (
            ["{stage_id: 0, name: a, kind: llm, model: demo, input_timeout_s: 3}"],
            "stage 0 (a): mine.yaml:4: input_timeout_s is for stages that others feed, and it has no sources",
        ),
        (
            [TEXT, "{stage_id: 1, kind: speech, model: demo, sources: [0], input_timeout_s: 0}"],
            "mine.yaml: stages[1].input_timeout_s: must be above 0, got 0",
        ),
    ],
)
def test_what_cannot_be_connected(stages: list[str], told: str, tmp_path: Path) -> None:
    found = problems(tmp_path, *stages)
    assert any(told in problem for problem in found), found


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("prompt_template: a cat", "prompt_template must have {prompt} where the client's prompt goes"),
        (
            "input_timeout_s: 3",
            "it needs a prompt_template: what its source is asked, with {prompt} where the client's",
        ),
        (
            "prompt_template: '{prompt}', async_chunk: true",
            "async_chunk must be false: a stage of kind diffusion needs",
        ),
        ("prompt_template: '{prompt}', entry: false", "it must be an entry, as it answers the requests for pictures"),
        (
            "prompt_template: '{prompt}', model_class_name: WanPipeline",
            "a source writes prompts for pictures only, and it makes video",
        ),
    ],
)
def test_what_a_written_prompt_needs(more: str, told: str, picture_model: str, tmp_path: Path) -> None:
    painter = f"{{stage_id: 1, name: p, kind: diffusion, model: {picture_model}, sources: [text], {more}}}"
    found = problems(tmp_path, TEXT, painter)
    assert any(problem.startswith("stage 1 (p): ") and told in problem for problem in found), found


def test_a_model_must_fit_the_kind_of_its_stage(
    model: str, picture_model: str, speech_model: str, tmp_path: Path
) -> None:
    told = problems(
        tmp_path,
        f"{{stage_id: 0, name: a, kind: llm, model: {speech_model}}}",
        f"{{stage_id: 1, name: b, kind: speech, model: {picture_model}}}",
        f"{{stage_id: 2, name: c, kind: diffusion, model: {model}}}",
    )
    assert told == [
        "stage 0 (a) is of kind llm, but voice is a model of type vits",
        "stage 1 (b) is of kind speech, but pictures is a diffusion model (StableDiffusionPipeline)",
        "stage 2 (c) is of kind diffusion, but model is a model of type qwen3",
    ]
    own = custom(tmp_path, f"{{stage_id: 0, kind: speech, model: {model}, family: vits}}").stages[0]
    assert own.engine_args == {"family": "vits"}


def test_the_kind_of_a_stage_is_for_its_file_to_say(tmp_path: Path) -> None:
    assert problems(tmp_path, TEXT, stage_overrides={"0": {"kind": "stub"}}) == [
        "--stage-overrides: kind of stage 0 is 'llm' in the pipeline custom and cannot become 'stub'"
    ]


def test_a_variable_for_another_server_only_warns(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"pipeline: custom\nstages: [{TEXT}]")
    resolution = examine({"deploy_config": str(file)}, {"OMNI_MODEL": "org/other"})
    assert resolution.warnings == ["env OMNI_MODEL: no stage takes org/other: each names a model of its own"]


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    stages = ["{stage_id: 0, kind: llm}", "{stage_id: 1, kind: speech, sources: [9]}", "{stage_id: 2, model: demo}"]
    assert len(problems(tmp_path, *stages)) == 4
    assert problems(tmp_path) == [
        "mine.yaml: stages: expected a list of stages, got None",
        "the pipeline custom has no stages: list them under stages",
    ]


def test_whether_a_stage_waits_for_all_of_its_input(tmp_path: Path) -> None:
    voice = "{stage_id: 1, name: voice, kind: speech, model: demo, sources: [0]}"

    def waits(*stages: str, **more: Any) -> tuple[bool, str]:
        settings = custom(tmp_path, TEXT, *stages, **more)
        return not settings.stages[1].async_chunk, settings.origins.get("stages[1].async_chunk", "default")

    file = f"{tmp_path}/mine.yaml"
    assert waits(voice) == (False, "default")
    assert waits(voice, top="async_chunk: false") == (True, f"{file}:2")
    assert waits(voice.replace("}", ", async_chunk: true}"), top="async_chunk: false") == (False, f"{file}:5")
    assert waits(voice, top="async_chunk: true", async_chunk=False) == (True, "flag --async-chunk")
    override = {"1": {"async_chunk": True}}
    assert waits(voice, async_chunk=False, stage_overrides=override) == (False, "--stage-overrides")


def test_what_is_said_of_edges_where_there_are_none(model: str, tmp_path: Path) -> None:
    assert custom(tmp_path, TEXT, top="async_chunk: false", async_chunk=False).pipeline == "custom"
    assert problems(tmp_path, TEXT, top="async_chunk: true") == [
        "mine.yaml:2: async_chunk: no stage of this pipeline feeds another"
    ]
    assert problems(tmp_path, TEXT, async_chunk=True) == [
        "flag --async-chunk: no stage of this pipeline takes it (its stages are: llm)"
    ]
    assert examine({"model": model}, {"OMNI_ASYNC_CHUNK": "1"}).warnings == [
        "env OMNI_ASYNC_CHUNK: no stage of this pipeline takes it (its stages are: llm)"
    ]


def test_edges_may_stand_apart_as_in_files_of_vllm_omni(tmp_path: Path) -> None:
    voice = "{stage_id: 1, name: voice, kind: speech, model: demo}"
    assert custom(tmp_path, TEXT, voice, top="edges: [{from: 0, to: 1}]").stages[1].sources == [0]
    shared = "connectors: {shm: {name: SharedMemoryConnector}}"
    for first, second in (
        (TEXT, voice.replace("}", ", input_connectors: {from_stage_0: shm}}")),
        (TEXT.replace("}", ", output_connectors: {to_stage_1: shm}}"), voice),
    ):
        assert custom(tmp_path, first, second, top=shared).stages[1].sources == [0]
        assert problems(tmp_path, first, second)[0].endswith("shm is not defined under connectors")


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ("edges: [{from: 0, to: 9}]", "an edge from stage 0 to 9: there is no stage 9"),
        ("edges: [{from: 0, to: 1, window_size: 3}]", "edges: what may wait between two stages is bounded in bytes by"),
        (
            "connectors: {a: {name: NixlConnector}}",
            "connectors: a: NixlConnector is not here: it needs NVIDIA's NIXL with UCX on both hosts",
        ),
        (
            "connectors: {a: {name: SharedMemoryConnector, extra: {codec_streaming: true}}}",
            "connectors: a.extra: codec_streaming are settings of models that vllm-omni runs in its own way; remove",
        ),
        (
            "connectors: {a: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}}",
            "connectors: a.extra: no stage names a as a connector",
        ),
        ("custom_voice_dir: /voices", "custom_voice_dir: voices are no files of a directory; upload them with POST"),
        ("active_stream_window: 4", "active_stream_window: how much a stage does at the same time is its max_num_seqs"),
    ],
)
def test_keys_of_vllm_omni_that_have_no_place_here(top: str, told: str, tmp_path: Path) -> None:
    voice = "{stage_id: 1, name: voice, kind: speech, model: demo, sources: [0]}"
    [problem] = problems(tmp_path, TEXT, voice, top=top)
    assert told in problem


def test_a_pipeline_of_ours_keeps_its_edges(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("edges: [{from: 0, to: 1}]\nstages: [{stage_id: 1, async_chunk: false, sources: [0]}]")
    speech = examine({"model": "demo", "deploy_config": str(file)}, {}).settings.stages[1]
    assert (speech.sources, speech.async_chunk) == ([0], False)
    file.write_text("edges: [{from: 1, to: 0}]\nstages: [{stage_id: 0, sources: [1]}]")
    with pytest.raises(ConfigError) as caught:
        examine({"model": "demo", "deploy_config": str(file)}, {})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("file", ["llm_speech.yaml", "prompt_expansion.yaml"])
def test_the_examples_that_ship_are_for_any_model(
    file: str, model: str, speech_model: str, picture_model: str, tmp_path: Path
) -> None:
    served, other, changed = (model, speech_model, 1) if file == "llm_speech.yaml" else (picture_model, model, 0)
    settings = examine({"model": served, "deploy_config": file}, {}).settings
    assert (settings.pipeline, settings.served_model_names) == ("custom", [served])
    assert {stage.model for stage in settings.stages} == {served, "demo"}
    overlay = tmp_path / file  # of the same name: its base is the one that ships
    overlay.write_text(json.dumps({"base_config": file, "stages": [{"stage_id": changed, "model": other}]}))
    changed_settings = examine({"model": served, "deploy_config": str(overlay)}, {}).settings
    assert {stage.model for stage in changed_settings.stages} == {served, other}
