"""Replicas on a real Ray cluster of two nodes on this host, the stub engine; one node is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from app.cluster.rayreplica import LOST, RayReplica, resources
from app.cluster.rundir import StartupError
from app.engines.spec import ReplicaSpec
from app.settings.schema import Settings, StageConfig
from tests.clusters import alive, cluster, eventually, free_port, replica_spec, settings, with_tcp


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without room for replicas, so that it can stay, and two nodes with room for two each."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def on_ray(nodes: Cluster, **engine: Any) -> Settings:
    config = with_tcp(settings(replicas=2, **engine))
    config.master.worker_backend = "ray"
    config.master.ray_address = nodes.address
    config.master.stage_init_timeout = 60
    return config


def actors() -> dict[str, str]:
    """The node of each living replica's actor, by its id."""
    found = ray._private.state.actors().items()  # the public state API needs Ray's dashboard
    return {
        name: x["Address"]["NodeID"]
        for name, x in found
        if x["State"] == "ALIVE" and x["ActorClassName"] == "ReplicaHost"
    }


async def test_replicas_are_spread_over_the_nodes_and_outlive_one(tmp_path: Path, nodes: Cluster) -> None:
    async with cluster(tmp_path, on_ray(nodes, token_s=0.01)) as (orchestrator, _):
        placed = await asyncio.to_thread(actors)
        assert len(set(placed.values())) == 2, "each of the two nodes has one"
        pids = [replica.pid for replica in orchestrator.status()[0].replicas]
        lost = next(node for node in nodes.worker_nodes if node.node_id == next(iter(placed.values())))
        await asyncio.to_thread(nodes.remove_node, lost)
        await eventually(lambda: sum(map(alive, pids)) == 1, 40)
        await eventually(lambda: len(live(orchestrator)) == 2 and set(live(orchestrator)) != set(pids), 90)
        pids = live(orchestrator)
        remaining = {node.node_id for node in nodes.worker_nodes}
        assert set((await asyncio.to_thread(actors)).values()) == remaining
    await eventually(lambda: not any(map(alive, pids)), 20)


def live(orchestrator: Any) -> list[int]:
    return sorted(replica.pid for replica in orchestrator.status()[0].replicas if replica.state == "up")


def unregistered(path: Path, **engine: Any) -> ReplicaSpec:
    """A replica whose master never answers."""
    given = replica_spec(path, with_tcp(settings(**engine)))
    given.registry = f"tcp://127.0.0.1:{free_port()}"
    return given


async def test_a_failed_start_is_explained(tmp_path: Path, nodes: Cluster) -> None:
    with pytest.raises(StartupError, match=r"stub/0.* \(exit code 1\): RuntimeError: no such checkpoint"):
        async with cluster(tmp_path, on_ray(nodes, load_error="no such checkpoint")):
            pass


async def test_a_killed_actor_takes_its_process_along(tmp_path: Path, nodes: Cluster) -> None:
    replica = RayReplica(unregistered(tmp_path, load_s=60), nodes.address)
    await replica.spawn()
    end = asyncio.create_task(replica.wait())
    await eventually(lambda: bool(actors()), 40)
    replica.kill()
    assert await asyncio.wait_for(end, 20) == LOST
    await replica.stop(1)


async def test_a_node_that_cannot_run_it_says_why(tmp_path: Path, nodes: Cluster) -> None:
    replica = RayReplica(replica_spec(tmp_path, settings()), nodes.address)
    await replica.spawn()
    try:
        assert await asyncio.wait_for(replica.wait(), 60) == 1
        assert "set --omni-token" in replica.tail()
    finally:
        await replica.stop(1)


async def test_no_cluster_is_told(tmp_path: Path) -> None:
    ray.shutdown()
    with pytest.raises(StartupError, match=r"no Ray cluster 127\.0\.0\.1:1"):
        await RayReplica(replica_spec(tmp_path, settings()), "127.0.0.1:1").spawn()


@pytest.mark.parametrize(
    ("kind", "devices", "arguments", "needed"),
    [
        ("stub", "", {}, {"num_cpus": 1}),
        ("llm", "cpu", {"tensor_parallel_size": 2}, {"num_cpus": 1}),
        ("llm", "0,1", {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5}, {"num_cpus": 1, "num_gpus": 2}),
        ("llm", "0", {"gpu_memory_utilization": 0.3}, {"num_cpus": 1, "num_gpus": 0.3}),
        ("speech", "", {}, {"num_cpus": 1, "num_gpus": 1}),
    ],
)
def test_what_ray_is_asked_for(kind: Any, devices: str, arguments: dict[str, Any], needed: dict[str, float]) -> None:
    stage = StageConfig(stage_id=0, name="s", kind=kind, model="m", devices=devices, engine_args=arguments)
    assert resources(stage, has_gpus=True) == needed
    assert resources(stage, has_gpus=False) == {"num_cpus": 1}
