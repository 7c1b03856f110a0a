"""How many replicas run here, and on which devices; another master finds it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster.localplan import LocalPlan
from app.cluster.messages import Scale
from app.settings.schema import StageConfig


def stage(devices: str, replicas: int = 1, tensor_parallel_size: int = 1) -> StageConfig:
    arguments = {"tensor_parallel_size": tensor_parallel_size}
    return StageConfig(
        stage_id=4, name="s", kind="llm", model="m", devices=devices, num_replicas=replicas, engine_args=arguments
    )


def given_out(plan: LocalPlan, of: StageConfig, count: int) -> list[str]:
    used: list[str] = []
    for _ in range(count):
        used.append(plan.devices(of, used))
    return used


def test_what_was_changed_is_found_by_the_next_master(tmp_path: Path) -> None:
    one, file = stage("0,1", 2), tmp_path / "scale.json"
    plan = LocalPlan([one], file)
    assert plan.wanted(4) == 2
    assert plan.change(Scale(4, 3, "5")) is one
    again = LocalPlan([one], file)
    assert again.wanted(4) == 3
    assert given_out(again, one, 3) == ["0", "1", "5"]
    assert plan.change(Scale(9, 3)) is None


def test_devices_that_were_given_back_are_given_out_again(tmp_path: Path) -> None:
    two = stage("0,1,2,3", 2, tensor_parallel_size=2)
    plan = LocalPlan([two], tmp_path / "scale.json")
    assert plan.devices(two, ["2,3"]) == "0,1"
    with pytest.raises(LookupError, match="all devices of stage s are in use"):
        plan.devices(two, ["0,1", "2,3"])


@pytest.mark.parametrize("devices", ["", "cpu", "0"])
def test_devices_that_are_shared_have_no_end(tmp_path: Path, devices: str) -> None:
    shared = stage(devices)
    assert given_out(LocalPlan([shared], tmp_path / "scale.json"), shared, 3) == [devices] * 3
