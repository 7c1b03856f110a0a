from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.resolve import ConfigError, Resolution, examine


@pytest.fixture
def resolved(model: str, tmp_path: Path) -> Any:
    def resolve(strategy: str, deploy: str = "", environ: dict[str, str] | None = None, **typed: Any) -> Resolution:
        (tmp_path / "s.yaml").write_text(strategy)
        (tmp_path / "d.yaml").write_text(deploy or "stages: [{stage_id: 0}]")
        files = {"strategy_config": str(tmp_path / "s.yaml"), "deploy_config": str(tmp_path / "d.yaml")}
        return examine({"model": model, **files, **typed}, environ or {}, source="flag")

    return resolve


def strategies(*axes: dict[str, Any]) -> str:
    return json.dumps({"strategies": {"llm": axes}})


def test_axes_become_sizes_with_their_lines(resolved: Any, tmp_path: Path) -> None:
    text = (
        "strategies:\n  llm:\n  - {axis: tp, size: 2}\n  - {axis: pp, size: 2}\n  - {axis: ep, size: 2}\n"
        "  - {axis: stage_replica, size: 3, routing: round_robin, name: wide}\n"
    )
    settings = resolved(text).settings
    [stage] = settings.stages
    assert stage.engine_args == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "enable_expert_parallel": True,
    }
    assert stage.num_replicas == 3
    assert settings.origins["stages[0].engine_args.pipeline_parallel_size"] == f"{tmp_path}/s.yaml:4"
    assert settings.origins["stages[0].num_replicas"] == f"{tmp_path}/s.yaml:6"
    assert stage.lb_policy == "round-robin"
    assert settings.origins["stages[0].lb_policy"] == f"{tmp_path}/s.yaml:6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategies: {lm: [{axis: tp, size: 2}]}", "s.yaml: there is no stage lm (did you mean llm?)"),
        (strategies({"axis": "sp", "size": 2}), "s.yaml: Invalid enum value 'sp' - at `$.strategies[...][0].axis`"),
        (strategies({"axis": "tp", "size": 0}), "s.yaml: Expected `int` >= 1"),
        (strategies({"axis": "tp", "size": 2}, {"axis": "tp", "size": 4}), "strategies.llm: an axis is given twice"),
        (strategies({"axis": "ep", "size": 3}, {"axis": "tp", "size": 2}), "the size of ep must be that of tp x dp, 2"),
        (strategies({"axis": "tp", "size": 2, "routing": "random"}), "routing does not belong to tp"),
        (
            strategies(
                {"axis": "dp", "size": 2, "routing": "random"},
                {"axis": "stage_replica", "size": 2, "routing": "least_queue"},
            ),
            "strategies.llm: a stage has one routing",
        ),
        (strategies({"axis": "dp", "size": 2, "l1_owner": "x"}), "unknown field `l1_owner`"),
        ("", "--strategy-config: "),
    ],
)
def test_mistakes(text: str, message: str, resolved: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(text)
    assert message in str(caught.value)


def test_a_deploy_file_that_says_something_else_is_a_contradiction(resolved: Any, tmp_path: Path) -> None:
    same = "stages: [{stage_id: 0, tensor_parallel_size: 2}]"
    assert resolved(strategies({"axis": "tp", "size": 2}), same).warnings == []
    with pytest.raises(ConfigError) as caught:
        resolved(strategies({"axis": "tp", "size": 4}), same)
    assert caught.value.problems == [
        f"{tmp_path}/s.yaml:1: engine_args.tensor_parallel_size of stage 0 is 4, but 2 in {tmp_path}/d.yaml:1"
    ]


def test_flags_and_variables_are_stronger_and_a_warning_says_so(resolved: Any, tmp_path: Path) -> None:
    text = strategies({"axis": "tp", "size": 2})
    typed = resolved(text, tensor_parallel_size="1")
    assert typed.settings.stages[0].engine_args["tensor_parallel_size"] == 1
    assert typed.warnings == [
        "flag --tensor-parallel-size: engine_args.tensor_parallel_size of stage 0 is 1, not 2 as in "
        f"{tmp_path}/s.yaml:1"
    ]
    variable = resolved(text, environ={"OMNI_TENSOR_PARALLEL_SIZE": "4"})
    assert variable.settings.stages[0].engine_args["tensor_parallel_size"] == 4


def test_a_policy_that_is_typed_is_stronger_than_the_routing(resolved: Any) -> None:
    text = strategies({"axis": "stage_replica", "size": 2, "routing": "random"})
    same = resolved(text, omni_lb_policy="random")
    assert (same.settings.stages[0].lb_policy, same.warnings) == ("random", [])
    other = resolved(text, environ={"OMNI_LB_POLICY": "round-robin"})
    assert other.settings.stages[0].lb_policy == "round-robin"
    assert "lb_policy of stage 0 is round-robin, not random as in" in other.warnings[0]


def test_too_few_devices_for_the_strategy(resolved: Any) -> None:
    with pytest.raises(ConfigError, match=r"devices \"0\" are 1, but .* is 2: name 2"):
        resolved(strategies({"axis": "tp", "size": 2}), "stages: [{stage_id: 0, devices: 0}]")
