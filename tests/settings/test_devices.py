from __future__ import annotations

import pytest

from app.settings.devices import device_sets, replica_devices
from app.settings.schema import StageConfig


@pytest.mark.parametrize(
    ("devices", "replicas", "tensor_parallel_size", "expected"),
    [
        ("0", 1, 1, ["0"]),
        ("0", 2, 1, ["0", "0"]),
        ("0,1", 2, 1, ["0", "1"]),
        ("0,1", 1, 2, ["0,1"]),
        ("0,1", 2, 2, ["0,1", "0,1"]),
        ("0,1,2,3", 2, 2, ["0,1", "2,3"]),
        ("cpu", 1, 1, ["cpu"]),
    ],
)
def test_replicas_have_their_own_devices_where_there_are_enough(
    devices: str, replicas: int, tensor_parallel_size: int, expected: list[str]
) -> None:
    stage = StageConfig(
        stage_id=0,
        name="text",
        kind="llm",
        model="m",
        devices=devices,
        num_replicas=replicas,
        engine_args={"tensor_parallel_size": tensor_parallel_size},
    )
    assert [replica_devices(stage, replica) for replica in range(replicas)] == expected
    assert device_sets(stage, 1) == [",".join(devices.split(",")[:tensor_parallel_size])]
