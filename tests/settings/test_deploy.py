from __future__ import annotations

from pathlib import Path

import pytest

from app.settings.deploy import SHIPPED, find, read_chain
from app.settings.pipelines import PIPELINES
from app.settings.resolve import ConfigError, examine
from app.settings.schema import Settings


def resolved(model: str, text: str, tmp_path: Path) -> Settings:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    return examine({"model": model, "deploy_config": str(file)}, {}).settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stagez: []", "x.yaml: unknown key stagez (did you mean stages?)"),
        ("stages: {}", "x.yaml: stages: expected a list of stages, got {}"),
        ("", "x.yaml: the file is empty"),
        ("- a", "x.yaml: expected a mapping of names to values at the top"),
        ("stages:\n\t- stage_id: 0", "x.yaml:2: found character '\\t' that cannot start any token"),
        ("dtype: a\ndtype: b", "x.yaml:2: the key 'dtype' is given twice"),
        ("stages: [{stage_id: 0}, {stage_id: 0}]", "x.yaml: stages[1].stage_id: stage 0 is given twice"),
        ("stages: [{devices: '0'}]", "x.yaml: stages[0]: each stage needs a stage_id, a whole number from 0"),
        ("stages: [{stage_id: 0, devices: '0,0'}]", "x.yaml: stages[0].devices: names a device twice: '0,0'"),
        ("stages: [{stage_id: 0, devices: first}]", "x.yaml: stages[0].devices: expected device numbers"),
        ("stages: [{stage_id: 0, num_replicas: 0}]", "x.yaml: stages[0].num_replicas: must be at least 1, got 0"),
        ("stages: [{stage_id: 0, env: {A: true}}]", "x.yaml: stages[0].env: expected text, got True"),
        (
            "stages: [{stage_id: 0, default_sampling_params: 1}]",
            "x.yaml: stages[0].default_sampling_params: expected a mapping",
        ),
        ("stages: [{stage_id: 0, engine_args: 1}]", "x.yaml: stages[0].engine_args: expected a mapping, got 1"),
        (
            "stages: [{stage_id: 0, max_model_length: 1}]",
            "x.yaml: stages[0]: unknown key max_model_length (did you mean max_model_len?)",
        ),
        (
            "stages: [{stage_id: 0, zzzzz: 1}]",
            "x.yaml: stages[0]: unknown key zzzzz; an engine argument without a flag goes under engine_args",
        ),
        (
            "stages: [{stage_id: 0, max_num_seqs: many}]",
            "x.yaml: stages[0].max_num_seqs: expected a whole number, got 'many'",
        ),
        (
            "stages: [{stage_id: 0, engine_args: {max_num_seqs: x}}]",
            "x.yaml: stages[0].engine_args.max_num_seqs: expected",
        ),
        ("stages: [{stage_id: 0}, {stage_id: 7}]", "x.yaml: the pipeline llm has no stage 7, only 0"),
        (
            "stages: [{stage_id: 0, kind: stub}]",
            "kind of stage 0 is 'llm' in the pipeline llm and cannot become 'stub'",
        ),
        ("pipeline: lmm", "pipeline: unknown pipeline lmm (did you mean llm?)"),
        ("pipeline: 3", "x.yaml: pipeline: expected text, got 3"),
        ("dtype: [1]", "x.yaml: dtype: expected text, got [1]"),
        ("platforms: {cudaa: {stages: []}}", "x.yaml: platforms.cudaa: unknown platform; known: cpu, cuda"),
        ("platforms: {cpu: {stagez: []}}", "x.yaml: platforms.cpu: expected a mapping with the one key stages"),
        (
            "platforms: {cpu: {stages: [{stage_id: 0, sed: 1}]}}",
            "x.yaml: platforms.cpu.stages[0]: unknown key sed (did you mean seed?)",
        ),
        ("stage_args: []", "stage_args is the old format; this prints it in the new one: omni-app config --convert"),
        ("base_config: nope.yaml", "nope.yaml: cannot be read: No such file or directory"),
        ("base_config: x.yaml", "base_config comes back to"),
    ],
)
def test_mistakes_are_told_with_file_and_place(text: str, message: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(model, text, tmp_path)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once(model: str, tmp_path: Path) -> None:
    text = "stagez: 1\nstages: [{stage_id: 0, devices: x, max_num_seqs: x}]"
    with pytest.raises(ConfigError) as caught:
        resolved(model, text, tmp_path)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(("written", "devices"), [("0", "0"), ("'0, 1'", "0,1"), ("[0, 1]", "0,1"), ("cpu", "cpu")])
def test_devices_may_be_written_in_several_ways(written: str, devices: str, model: str, tmp_path: Path) -> None:
    size = devices.count(",") + 1
    stage = f"{{stage_id: 0, devices: {written}, tensor_parallel_size: {size}}}"
    settings = resolved(model, f"stages: [{stage}]", tmp_path)
    assert settings.stages[0].devices == devices


def test_base_configs_are_found_beside_the_file_and_overlaid(model: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text(
        "dtype: float16\nstages: [{stage_id: 0, max_num_seqs: 1, seed: 1, hf_overrides: {a: 1, b: 1}}]"
    )
    text = "base_config: sub/base.yaml\nstages: [{stage_id: 0, seed: 2, hf_overrides: {b: 2}}]"
    settings = resolved(model, text, tmp_path)
    arguments = settings.stages[0].engine_args
    assert arguments == {"dtype": "float16", "max_num_seqs": 1, "seed": 2, "hf_overrides": {"a": 1, "b": 2}}
    assert settings.origins["stages[0].engine_args.max_num_seqs"] == f"{tmp_path}/sub/base.yaml:2"
    assert settings.origins["stages[0].engine_args.seed"] == f"{tmp_path}/x.yaml:2"


def test_null_takes_a_base_value_away(model: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("stages: [{stage_id: 0, seed: 1, dtype: float16}]")
    settings = resolved(model, "base_config: base.yaml\nstages: [{stage_id: 0, seed: null}]", tmp_path)
    assert settings.stages[0].engine_args == {"dtype": "float16"}


def test_engine_args_is_the_way_for_arguments_without_a_flag(model: str, tmp_path: Path) -> None:
    settings = resolved(
        model, "stages: [{stage_id: 0, engine_args: {moe_backend: triton, max_model_len: 2k}}]", tmp_path
    )
    assert settings.stages[0].engine_args == {"moe_backend": "triton", "max_model_len": 2000}


def test_a_bare_name_means_a_shipped_file() -> None:
    assert find("demo.yaml") == SHIPPED / "demo.yaml"


def test_a_missing_file_is_named_with_a_near_match() -> None:
    with pytest.raises(
        ValueError, match=r"there is no file demmo.yaml \(did you mean demo.yaml\?\); shipped files: bagel"
    ):
        find("demmo.yaml")
    with pytest.raises(ConfigError, match=r"argument deploy_config: there is no file /nope\.yaml"):
        examine({"model": "demo", "deploy_config": "/nope.yaml"}, {})


OF_PIPELINES = [file for file in sorted(SHIPPED.glob("*.yaml")) if file.stem in PIPELINES]
"""The other shipped files are examples of the pipeline custom; their tests are in test_edges.py."""


@pytest.mark.parametrize("file", OF_PIPELINES, ids=lambda file: file.name)
def test_shipped_files_are_right(file: Path) -> None:
    problems: list[str] = []
    (document,) = read_chain(file, problems)
    pipeline = PIPELINES[file.stem]
    assert problems == []
    assert document.pipeline == file.stem
    assert sorted(document.stages) == list(range(len(pipeline.stages)))
    assert bool(document.refused) <= bool(pipeline.refusal)


def test_every_pipeline_has_its_file() -> None:
    assert {file.stem for file in OF_PIPELINES} == set(PIPELINES) - {"custom"}


@pytest.mark.parametrize("name", [pipeline.name for pipeline in PIPELINES.values() if pipeline.missing])
def test_a_pipeline_that_cannot_run_is_refused_with_one_sentence(name: str, model: str) -> None:
    with pytest.raises(ConfigError) as caught:
        examine({"model": model, "deploy_config": f"{name}.yaml"}, {})
    [problem] = caught.value.problems
    assert f"the pipeline {name} cannot run: {PIPELINES[name].missing}" in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("session_mode: duplex", "x.yaml: session_mode: no model here listens and speaks at a time"),
        ("model_runner: v1", "x.yaml: model_runner: vLLM chooses its runner"),
        ("async_chunk: maybe", "x.yaml: async_chunk: Expected `bool`, got `str`"),
        ("edges: [{from: 0, to: 1, size: 2}]", "x.yaml: edges: Object contains unknown field `size`"),
        ("connectors: {a: {name: X, extra: 1}}", "x.yaml: connectors: Expected `object`, got `int`"),
        ("duplex_session: {max_sessions: 0}", "x.yaml: duplex_session: Expected `int` >= 1"),
        ("stages: [{stage_id: 0, silence_ban_frames: 1}]", "stages[0].silence_ban_frames: a setting of Qwen3-TTS"),
        ("stages: [{stage_id: 0, vae_use_tiling: 1}]", "stages[0].vae_use_tiling: expected true or false, got 1"),
        (
            "stages: [{stage_id: 0, default_pooling_params: {}}]",
            "stages[0].default_pooling_params: say it in each request",
        ),
        ("stages: [{stage_id: 0, runtime: {seed: 1}}]", "stages[0].runtime: only devices, num_replicas and env belong"),
    ],
)
def test_keys_without_a_use_are_checked_and_refused(text: str, message: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(model, text, tmp_path)
    assert message in str(caught.value)


def test_the_older_places_of_settings(model: str, tmp_path: Path) -> None:
    text = """
stages:
- stage_id: 0
  devices: "0"
  runtime: {devices: "1", num_replicas: 2, env: {A: b}}
  engine_extras: {moe_backend: triton}
"""
    settings = resolved(model, text, tmp_path)
    stage = settings.stages[0]
    assert (stage.devices, stage.num_replicas, stage.env) == ("1", 2, {"A": "b"})
    assert stage.engine_args == {"moe_backend": "triton"}
    assert settings.origins["stages[0].num_replicas"] == f"{tmp_path}/x.yaml:5"
    assert settings.origins["stages[0].engine_args.moe_backend"] == f"{tmp_path}/x.yaml:6"


def test_a_pipeline_runs_without_its_file(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.stages.SHIPPED", tmp_path)
    resolution = examine({"model": model}, {})
    assert resolution.settings.stages[0].engine_args == {}
    assert resolution.warnings == [
        f"the file {tmp_path}/llm.yaml of this pipeline is missing; the engines' own defaults are used"
    ]


def test_an_open_pipeline_takes_stages_from_the_file(tmp_path: Path) -> None:
    second = "{stage_id: 1, entry: false, outputs: [audio], sources: [a], engine_args: {x: 1}}"
    text = f"pipeline: stub\nstages: [{{stage_id: 0, name: a}}, {second}]"
    settings = resolved("stub", text, tmp_path)
    assert [(stage.name, stage.kind, stage.entry, stage.outputs) for stage in settings.stages] == [
        ("a", "stub", True, ["text"]),
        ("stage1", "stub", False, ["audio"]),
    ]
    assert (settings.stages[1].sources, settings.stages[1].engine_args) == ([0], {"x": 1})


def test_each_stage_has_its_own_way_of_balancing_and_keys_of_its_platform(model: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        f"pipeline: custom\nstages:\n  - {{stage_id: 0, kind: llm, model: {model}, lb_policy: session-affinity}}\n"
        "  - {stage_id: 1, kind: stub}\n"
        "platforms:\n  cpu: {stages: [{stage_id: 0, enforce_eager: true}]}\n"
        "  cuda: {stages: [{stage_id: 0, dtype: bfloat16}]}\n"
    )
    typed = {"deploy_config": str(file), "omni_lb_policy": "random"}
    first, second = examine(typed, {}, source="flag").settings.stages
    assert (first.lb_policy, second.lb_policy) == ("random", "random"), "what is typed is for all of them"
    del typed["omni_lb_policy"]
    first, second = examine(typed, {}, source="flag").settings.stages
    assert (first.lb_policy, second.lb_policy) == ("session-affinity", "least-queue-length")
    assert (first.per_platform, second.per_platform) == (["dtype", "enforce_eager"], [])
