"""One replica of a language model on several hosts: what has to be said, and what cannot be had together."""

from __future__ import annotations

from collections.abc import Iterator

from app.settings.devices import is_further_node, nodes, ranks
from app.settings.schema import NODE_ARGUMENTS, Settings, StageConfig


def node_problems(settings: Settings) -> Iterator[str]:
    """What is wrong with --nnodes, --node-rank, --master-addr and --master-port."""
    for stage in settings.stages:
        where = f"stage {stage.stage_id} ({stage.name})"
        if stage.kind == "llm":
            yield from (f"{where}: {problem}" for problem in (*_of_stage(stage), *_of_server(settings, stage)))


def _of_stage(stage: StageConfig) -> Iterator[str]:
    given, count, world = stage.engine_args, nodes(stage), ranks(stage)
    rank = int(given.get("node_rank") or 0)
    if count == 1:
        others = [f"--{name.replace('_', '-')}" for name in NODE_ARGUMENTS if name != "nnodes" and given.get(name)]
        if others:
            yield f"{', '.join(others)}: means nothing without --nnodes, the number of hosts of one replica"
        return
    if not given.get("master_addr"):
        yield "--nnodes needs --master-addr, the address of the host with --node-rank 0, the same on all of them"
    if rank >= count:
        yield f"--node-rank {rank}: the {count} hosts of --nnodes are numbered from 0 to {count - 1}"
    if stage.model_stage:
        yield (
            f"--nnodes: a {stage.model_stage} runs on one host, as it hands what it computes to its own process; give "
            "the stage num_replicas, or tensor_parallel_size over the devices of one host"
        )
    if int(given.get("data_parallel_size") or 1) > 1:
        yield (
            "--nnodes and --data-parallel-size exclude each other: the engines of one replica run on one host; for "
            "more hosts run headless replicas"
        )
    elif world % count:
        yield (
            f"--nnodes {count}: tensor_parallel_size x pipeline_parallel_size is {world}, which {count} hosts cannot "
            "share equally"
        )


def _of_server(settings: Settings, stage: StageConfig) -> Iterator[str]:
    if nodes(stage) == 1:
        return
    if stage.num_replicas > 1 or (settings.master.local_replicas or 1) > 1:
        yield (
            "--nnodes: one command runs one replica of several hosts; run `omni-app headless` for each further one, "
            "with another --master-port or --master-addr"
        )
    if settings.master.worker_backend == "ray":
        yield "--nnodes and --worker-backend ray exclude each other: Ray places a replica on one node"
    if is_further_node(stage):
        given = {"--omni-dp-size-local": settings.master.local_replicas, "--replica-id": settings.master.replica_id}
        names = [name for name, value in given.items() if value is not None]
        yield from (f"{name}: a host with --node-rank above 0 runs no replica of its own" for name in names)
