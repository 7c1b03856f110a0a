"""A further host of a replica: it waits for the first one, and ends with it. The whole process, without workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.cluster.local import LocalReplica
from app.engines.spec import EXIT_FAILED, ReplicaSpec
from tests.clusters import eventually, free_port
from tests.engines.llm.conftest import tiny_stage


@asynccontextmanager
async def node(port: int, registry: str = "") -> AsyncIterator[LocalReplica]:
    stage = tiny_stage(tensor_parallel_size=2, nnodes=2, node_rank=1, master_addr="127.0.0.1", master_port=port)
    replica = LocalReplica(
        ReplicaSpec(
            stage=stage,
            replica_id=-1,
            registry=registry,
            bind="",
            token="",
            served_model_names=["tiny"],
            shutdown_timeout=1,
            slow_client_timeout=1,
            parent_pid=os.getpid(),
        )
    )
    await replica.spawn()
    try:
        yield replica
    finally:
        await replica.stop(1)


async def test_it_waits_and_leaves_when_told() -> None:
    port = free_port()
    async with node(port) as replica:
        await eventually(lambda: f"waiting for the first node at 127.0.0.1:{port}" in replica.tail(), 30)
        os.kill(replica.pid, signal.SIGTERM)
        assert await asyncio.wait_for(replica.wait(), 20) == 0
        assert not replica.notices.welcomed.is_set()


async def test_it_ends_with_the_first_node() -> None:
    """The next one is a life of its own: torch's process group takes no member back."""
    connected = asyncio.Event()

    async def store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await asyncio.sleep(1)
        writer.close()

    port = free_port()
    async with await asyncio.start_server(store, "127.0.0.1", port), node(port) as replica:
        await asyncio.wait_for(connected.wait(), 30)
        assert await asyncio.wait_for(replica.wait(), 30) == EXIT_FAILED
        assert replica.notices.welcomed.is_set()
        assert "has ended" in replica.tail()


async def test_a_server_has_no_further_node() -> None:
    async with node(free_port(), registry="ipc:///nowhere") as replica:
        assert await asyncio.wait_for(replica.wait(), 30) == EXIT_FAILED
        assert "is for `omni-app headless`" in replica.tail()
