from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from app.settings.convert import convert_file
from app.settings.resolve import ConfigError, examine

OLD = """
stage_args:
- stage_id: 0
  stage_type: llm
  runtime: {process: true, devices: "0,1", max_batch_size: 4}
  engine_args:
    model_stage: thinker
    worker_cls: some.Worker
    tensor_parallel_size: 2
    gpu_memory_utilization: 0.5
    moe_backend: triton
  is_comprehension: true
  final_output: true
  final_output_type: text
  default_sampling_params: {temperature: 0.3}
"""


def test_an_old_file_becomes_one_that_is_accepted(model: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    with pytest.raises(ConfigError, match=f"omni-app config --convert {old}"):
        examine({"model": model, "deploy_config": str(old)}, {})
    new.write_text(convert_file(old))
    [stage] = examine({"model": model, "deploy_config": str(new)}, {}).settings.stages
    assert stage.devices == "0,1"
    assert stage.default_sampling_params == {"temperature": 0.3}
    assert stage.engine_args == {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "max_num_seqs": 4,
        "moe_backend": "triton",
    }


def test_an_old_file_is_read_as_what_it_becomes(model: str, tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(OLD)
    found = examine({"model": model, "stage_configs_path": str(old)}, {})
    [stage] = found.settings.stages
    assert (stage.devices, stage.default_sampling_params["temperature"]) == ("0,1", 0.3)
    assert (stage.engine_args["max_num_seqs"], stage.engine_args["moe_backend"]) == (4, "triton")
    assert f"{old}: stage_args[0].runtime.max_batch_size: is max_num_seqs now" in found.warnings
    origins = found.settings.origins
    assert origins["stages[0].engine_args.gpu_memory_utilization"] == f"{old}:10"
    assert origins["stages[0].devices"] == f"{old}:5"


def test_one_file_describes_the_stages(model: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text("stages: [{stage_id: 0}]")
    with pytest.raises(ConfigError, match="exclude each other: both describe the stages"):
        examine({"model": model, "deploy_config": str(new), "stage_configs_path": str(old)}, {})


def test_a_mistake_in_an_old_file_has_its_place(model: str, tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(OLD.replace("0.5", "5"))
    with pytest.raises(ConfigError, match=r"old\.yaml: stages\[0\]\.gpu_memory_utilization: must be at most 1"):
        examine({"model": model, "stage_configs_path": str(old)}, {})


def test_what_is_left_out_is_told_in_comments(tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(
        OLD + "runtime:\n  enabled: true\n  defaults: {max_inflight: 1}\n  edges: [{from: 0, to: 1}]\nx: 1\n"
    )
    text = convert_file(old)
    for note in (
        "stage_args[0].stage_type: the pipeline decides it",
        "stage_args[0].runtime.max_batch_size: is max_num_seqs now",
        "stage_args[0].runtime.process: every stage runs in processes of its own",
        "stage_args[0].engine_args.worker_cls: the pipeline decides it",
        "runtime.defaults: has no place in the new form",
        "x: has no place in the new form",
    ):
        assert f"#   {note}\n" in text
    assert yaml.safe_load(text)["edges"] == [{"from": 0, "to": 1}]


@pytest.mark.parametrize("text", ["stages: []", "stage_args: {}", "stage_args: [1]"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml: stage_args: expected a list of stages"):
        convert_file(file)
