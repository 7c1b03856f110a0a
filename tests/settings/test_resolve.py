from __future__ import annotations

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.settings.resolve import ConfigError, examine, resolve
from app.settings.schema import Settings

STRONGEST_LAST = (
    "base pipeline-wide",
    "base stage",
    "base platform",
    "file pipeline-wide",
    "file stage",
    "file platform",
    "strategy",
    "env",
    "typed",
    "override",
)
FIELD = "pipeline_parallel_size"
"""A setting that each of them can give; each gives its own number."""


def number(source: str) -> int:
    return STRONGEST_LAST.index(source) + 1


def document(level: str, sources: set[str]) -> dict[str, Any]:
    """A deploy file in which each of its sources gives its number."""
    content: dict[str, Any] = {}
    if f"{level} pipeline-wide" in sources:
        content[FIELD] = number(f"{level} pipeline-wide")
    if f"{level} stage" in sources:
        content["stages"] = [{"stage_id": 0, FIELD: number(f"{level} stage")}]
    if f"{level} platform" in sources:
        content["platforms"] = {"cpu": {"stages": [{"stage_id": 0, FIELD: number(f"{level} platform")}]}}
    return content


def resolve_from(directory: Path, sources: set[str]) -> Settings:
    """Write the files of these sources, and resolve with the rest of them."""
    (directory / "config.json").write_text('{"model_type": "x"}')
    (directory / "base.yaml").write_text(json.dumps(document("base", sources) | {"pipeline": "llm"}))
    (directory / "file.yaml").write_text(json.dumps(document("file", sources) | {"base_config": "base.yaml"}))
    typed: dict[str, Any] = {"model": str(directory), "deploy_config": str(directory / "file.yaml")}
    if "strategy" in sources:
        typed["strategy_config"] = str(directory / "strategy.yaml")
        axes = [{"axis": "pp", "size": number("strategy")}]
        (directory / "strategy.yaml").write_text(json.dumps({"strategies": {"llm": axes}}))
    if "typed" in sources:
        typed[FIELD] = str(number("typed"))
    if "override" in sources:
        typed["stage_overrides"] = {"0": {FIELD: number("override")}}
    environ = {"OMNI_PIPELINE_PARALLEL_SIZE": str(number("env"))} if "env" in sources else {}
    return examine(typed, environ).settings


def origin_of(source: str, directory: str) -> str:
    match source.split():
        case ["base" | "file" as level, _]:
            return f"{directory}/{level}.yaml:1"
        case ["strategy"]:
            return f"{directory}/strategy.yaml:1"
    return {
        "env": "env OMNI_PIPELINE_PARALLEL_SIZE",
        "typed": "argument pipeline_parallel_size",
        "override": "--stage-overrides",
    }[source]


@settings(deadline=None)  # it writes files
@given(st.sets(st.sampled_from(STRONGEST_LAST)))
def test_the_strongest_source_wins(sources: set[str]) -> None:
    contradiction = "strategy" in sources and any(source.startswith(("base", "file")) for source in sources)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.settings.platforms.current", lambda: "cpu")
        if contradiction:
            with pytest.raises(ConfigError, match=f"{FIELD} of stage 0 is {number('strategy')}, but"):
                resolve_from(Path(directory), sources)
            return
        resolved = resolve_from(Path(directory), sources)
        strongest = max(sources, key=STRONGEST_LAST.index, default=None)
        found = resolved.stages[0].engine_args.get(FIELD)
        origin = resolved.origins.get(f"stages[0].engine_args.{FIELD}")
        assert found == (number(strongest) if strongest else None)
        assert origin == (origin_of(strongest, directory) if strongest else None)


def test_an_untyped_flag_does_not_hide_the_file(model: str, tmp_path: Path) -> None:
    file = tmp_path / "y.yaml"
    file.write_text("stages: [{stage_id: 0, gpu_memory_utilization: 0.8}]")
    common = {"model": model, "deploy_config": str(file)}
    assert examine(common, {}).settings.stages[0].engine_args["gpu_memory_utilization"] == 0.8
    typed = examine({**common, "gpu_memory_utilization": "0.2"}, {}).settings
    assert typed.stages[0].engine_args["gpu_memory_utilization"] == 0.2


def test_booleans_have_three_states(model: str, tmp_path: Path) -> None:
    file = tmp_path / "y.yaml"
    file.write_text("trust_remote_code: true")
    common = {"model": model, "deploy_config": str(file)}
    assert examine(common, {}).settings.stages[0].engine_args["trust_remote_code"] is True
    off = examine({**common, "trust_remote_code": False}, {}).settings
    assert off.stages[0].engine_args["trust_remote_code"] is False


def test_without_a_model_one_sentence_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, {})
    assert caught.value.problems == [
        "no model: set OMNI_MODEL (OMNI_MODEL=demo needs nothing else), or use `omni-app serve MODEL`"
    ]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        examine(
            {"model": "/nope", "prot": 1, "workers": 0, "root_path": "x", "stage_overrides": {"a": 1, "0": 2}},
            {"OMNI_BOOT": "never"},
        )
    told = "\n".join(caught.value.problems)
    for part in (
        "argument prot: there is no such setting (did you mean port?)",
        "argument workers: must be at least 1, got 0",
        "OMNI_BOOT: expected one of blocking, background; got 'never'",
        "--root-path must begin with /, got 'x'",
        "argument stage_overrides: a: a stage id is a whole number",
        "argument stage_overrides: 0: expected an object of settings, got 2",
        "there is no model at /nope: the directory does not exist",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("[1]", "expected an object by stage id"),
        ("{", "expected JSON"),
        ('{"0": {"max_model_length": 1}}', "0: unknown key max_model_length (did you mean max_model_len?)"),
        ('{"4": {}}', "--stage-overrides: the pipeline demo has no stage 4, only 0"),
        ('{"0": {"kind": "stub"}}', "kind of stage 0 is 'llm' in the pipeline demo and cannot become 'stub'"),
    ],
)
def test_bad_overrides_are_refused(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        examine({"model": "demo", "stage_overrides": overrides}, {})
    assert message in str(caught.value)


def test_a_typed_flag_that_no_stage_takes_is_refused_but_a_variable_only_warns() -> None:
    with pytest.raises(ConfigError, match="argument dtype: no stage of this pipeline takes it"):
        examine({"model": "stub", "dtype": "float16"}, {})
    resolution = examine({"model": "stub"}, {"OMNI_DTYPE": "float16"})
    assert resolution.settings.stages[0].engine_args == {}
    assert resolution.warnings == ["env OMNI_DTYPE: no stage of this pipeline takes it (its stages are: stub)"]


def test_a_global_flag_goes_only_to_stages_that_own_it(model: str, tmp_path: Path) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text("pipeline: stub\ndtype: float16\nstages: [{stage_id: 0}, {stage_id: 1, kind: llm}]")
    stages = examine({"model": "stub", "deploy_config": str(file), "seed": 3}, {}).settings.stages
    assert [stage.engine_args for stage in stages] == [{}, {"dtype": "float16", "seed": 3}]


def test_what_a_file_says_for_all_stages_must_be_for_one_of_them(picture_model: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("dtype: float16\nenable_prefix_caching: true\nstages: [{stage_id: 0}]")
    with pytest.raises(ConfigError) as caught:
        examine({"model": picture_model, "deploy_config": str(file)}, {})
    assert caught.value.problems == [
        f"{file}:2: enable_prefix_caching: no stage of this pipeline takes it (its stages are: diffusion)"
    ]


def test_engines_do_not_get_each_others_arguments(picture_model: str, model: str, tmp_path: Path) -> None:
    for served, arguments, named in (
        (picture_model, "max_model_len: 4", "of kind diffusion, which has no setting max_model_len"),
        (picture_model, "engine_args: {gpu_memory_utilization: 0.5}", "which has no setting gpu_memory_utilization"),
        (picture_model, "engine_args: {slicing: true}", "engine argument 'slicing' is unknown to the diffusion engine"),
        (model, "vae_use_tiling: true", "of kind llm, which has no setting vae_use_tiling"),
        (model, "engine_args: {step_execution: true}", "of kind llm, which has no setting step_execution"),
    ):
        (tmp_path / "x.yaml").write_text(f"stages: [{{stage_id: 0, {arguments}}}]")
        with pytest.raises(ConfigError, match=named):
            examine({"model": served, "deploy_config": str(tmp_path / "x.yaml")}, {})


def test_sampling_defaults_reach_a_diffusion_stage_and_merge(picture_model: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("stages: [{stage_id: 0, default_sampling_params: {guidance_scale: 3, seed: 1}}]")
    typed = {"deploy_config": str(tmp_path / "x.yaml"), "default_sampling_params": '{"0": {"seed": 2}}'}
    [stage] = examine({"model": picture_model, **typed}, {}).settings.stages
    assert stage.default_sampling_params == {"guidance_scale": 3, "seed": 2}


def test_a_named_setting_must_belong_to_the_kind(tmp_path: Path) -> None:
    file = tmp_path / "stub.yaml"
    file.write_text("pipeline: stub\nstages: [{stage_id: 0, max_num_seqs: 3}]")
    with pytest.raises(ConfigError, match="stage 0 is of kind stub, which has no setting max_num_seqs"):
        examine({"model": "stub", "deploy_config": str(file)}, {})


def test_the_file_of_serve_is_read_and_arguments_are_stronger(tmp_path: Path) -> None:
    file = tmp_path / "typed.json"
    file.write_text('{"model": "demo", "port": "9000", "workers": "3"}')
    settings = resolve({"workers": 2}, {"OMNI_SETTINGS_FILE": str(file), "OMNI_PORT": "9001"})
    assert (settings.model, settings.server.port, settings.server.workers) == ("demo", 9000, 2)
    assert settings.origins["server.port"] == "flag --port"
    assert settings.origins["server.workers"] == "argument workers"


def test_an_unreadable_file_of_serve_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="OMNI_SETTINGS_FILE=/nope cannot be read"):
        resolve({"model": "demo"}, {"OMNI_SETTINGS_FILE": "/nope"})


def test_served_names(model: str) -> None:
    assert examine({"model": "demo"}, {}).settings.served_model_names == ["demo"]
    several = examine({"model": model, "served_model_name": ["a", "b", "a"]}, {}).settings
    assert several.served_model_names == ["a", "b"]


def test_root_path_loses_its_last_slash() -> None:
    assert examine({"model": "demo", "root_path": "/omni/"}, {}).settings.server.root_path == "/omni"


def test_a_master_in_reach_of_others_needs_a_token() -> None:
    reachable = {"model": "demo", "omni_master_address": "0.0.0.0", "omni_master_port": 5000}
    with pytest.raises(ConfigError, match=r"the master at 0\.0\.0\.0:5000 can be reached .* give --omni-token"):
        examine(reachable, {})
    assert examine(reachable, {"OMNI_TOKEN": "secret"}).settings.master.token == "secret"
    assert examine({**reachable, "omni_master_address": "localhost"}, {}).settings.master.port == 5000


def test_what_another_server_does_not_act_on_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING):
        resolve({"model": "demo", "workers": 2}, {"OMNI_PORT": "9000", "OMNI_BOOT": "background"})
    assert [record.getMessage() for record in caplog.records] == [
        f"{origin}: only `omni-app serve` acts on it; tell the server that runs this application"
        for origin in ("env OMNI_PORT", "argument workers")
    ]
    caplog.clear()
    typed = tmp_path / "typed.json"
    typed.write_text('{"model": "demo", "port": "9000"}')
    resolve({}, {"OMNI_SETTINGS_FILE": str(typed)})
    assert caplog.records == []


def test_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resolve({"model": "demo"}, {"OMNI_PROT": "1"})
    assert "OMNI_PROT is set, but there is no such setting (did you mean OMNI_PORT?)" in caplog.text
