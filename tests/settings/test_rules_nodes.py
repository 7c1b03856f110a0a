"""One replica on several hosts: what is accepted, and what is told of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.settings.devices import is_further_node, ranks, world_size
from app.settings.flags import by_key
from app.settings.resolve import ConfigError, examine
from app.settings.schema import Settings, stage_digest

TWO = {"nnodes": 2, "master_addr": "10.0.0.1", "tensor_parallel_size": 8}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
    return str(tmp_path)


def resolved(model: str, **typed: Any) -> Settings:
    return examine({"model": model, **typed}, {}, source="flag").settings


def test_each_host_has_its_part_of_the_devices(model: str) -> None:
    first, further = (resolved(model, **TWO, node_rank=rank).stages[0] for rank in (0, 1))
    assert (ranks(first), world_size(first)) == (8, 4)
    assert (is_further_node(first), is_further_node(further)) == (False, True)
    assert first.engine_args["master_addr"] == "10.0.0.1"
    resolved(model, **TWO, stage_overrides={"0": {"devices": "0,1,2,3"}})
    with pytest.raises(ConfigError, match="is 4: name 4"):
        resolved(model, **TWO, stage_overrides={"0": {"devices": "0,1"}})


NODES = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29600}


def test_they_arrive_from_everywhere(model: str, tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(json.dumps({"stages": [{"stage_id": 0, "tensor_parallel_size": 2, **NODES}]}))
    variables = {by_key()[name].variable: str(value) for name, value in NODES.items()}
    assert {"OMNI_VLLM_MASTER_ADDR", "OMNI_VLLM_MASTER_PORT"} <= variables.keys(), "OMNI_MASTER_PORT is the master's"
    for typed, environ in (
        (NODES | {"tensor_parallel_size": 2}, {}),
        ({"tensor_parallel_size": 2}, variables),
        ({"deploy_config": str(file)}, {}),
    ):
        arguments = examine({"model": model, **typed}, environ).settings.stages[0].engine_args
        assert NODES.items() <= arguments.items()


def test_a_replica_joins_wherever_its_nodes_are(model: str) -> None:
    stage = resolved(model, **TWO).stages[0]
    elsewhere = msgspec.structs.replace(stage, engine_args=stage.engine_args | {"master_addr": "b", "node_rank": 0})
    assert stage_digest(elsewhere) == stage_digest(stage)


def test_every_axis_counts(model: str) -> None:
    given = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 2}
    stage = resolved(model, **given, enable_expert_parallel=True).stages[0]
    assert ranks(stage) == world_size(stage) == 12
    assert stage.engine_args["enable_expert_parallel"] is True


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"master_addr": "a", "node_rank": 1}, "--node-rank, --master-addr: means nothing without --nnodes"),
        ({"nnodes": 2, "tensor_parallel_size": 2}, "--nnodes needs --master-addr"),
        (TWO | {"node_rank": 2}, "--node-rank 2: the 2 hosts of --nnodes are numbered from 0 to 1"),
        (TWO | {"nnodes": 3}, "tensor_parallel_size x pipeline_parallel_size is 8, which 3 hosts cannot share"),
        (TWO | {"data_parallel_size": 2}, "--nnodes and --data-parallel-size exclude each other"),
        (TWO | {"stage_overrides": {"0": {"num_replicas": 2}}}, "one command runs one replica of several hosts"),
        (
            TWO
            | {"worker_backend": "ray", "omni_master_address": "10.0.0.1", "omni_master_port": 1, "omni_token": "x"},
            "Ray places a replica on one node",
        ),
    ],
)
def test_what_cannot_be_is_told(model: str, typed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(model, **typed)
    assert [problem for problem in caught.value.problems if told in problem] != []
    assert len(caught.value.problems) == 1
