"""Stages that die, stall, send nothing or send late: the right error, in time, for that request alone, nothing left."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from tests.clusters import alive, cluster, eventually, held_refs, with_tcp
from tests.faults import edges
from tests.faults.edges import DEATHS, ENDS, FRAMES, SPOKEN, TIMEOUT_S, meet, nothing_left
from tests.handover import ROOT, chain, elsewhere, held, pipeline, read, replicas, said, script

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    """Two replicas of each of two stages."""
    async with cluster(tmp_path_factory.mktemp("edges"), pipeline(2, 2)) as (orchestrator, _):
        yield orchestrator


@pytest.mark.parametrize("name", [*ENDS, *DEATHS])
async def test_it_is_told_in_time_and_others_go_on(stages: Orchestrator, name: str) -> None:
    """The other request began before, so that both stages have it in replicas that the one with the fault is not in."""
    await edges.idle(stages)
    bystander = asyncio.create_task(
        read(chain(stages, script(8, tensors=FRAMES, token_s=0.12), script(), request_id="b"))
    )
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await meet(stages, (ENDS | DEATHS)[name])
    assert time.monotonic() - began < TIMEOUT_S + 10
    assert (await bystander)[1] == SPOKEN
    await edges.idle(stages)


@pytest.mark.parametrize("name", ENDS)
async def test_fifty_of_each_leave_nothing(stages: Orchestrator, name: str) -> None:
    await edges.many(stages, ENDS[name], 50)


async def test_who_waits_for_another_stage_is_not_taken_for_stuck(tmp_path: Path) -> None:
    """The second stage waits longer than any engine may go without a step; another request keeps the first one busy."""
    config = pipeline(1, 1)
    config.master.stall_timeout = 1
    async with cluster(tmp_path, config) as (orchestrator, _):
        before = replicas(orchestrator)
        busy = asyncio.create_task(read(chain(orchestrator, script(80, token_s=0.05), request_id="busy")))
        assert (await read(chain(orchestrator, script(1, tensors=FRAMES, token_s=2.5), script())))[1] == said(
            1, **FRAMES
        )
        await busy
        assert replicas(orchestrator) == before


# ------------------------------------------------------------------------------------------------ API workers

WORKER = """
import asyncio, sys, msgspec
from app.pipeline.orchestrator import Orchestrator
from app.settings.schema import Settings
from tests.handover import chain, script

async def main():
    orchestrator = Orchestrator(msgspec.json.decode(sys.argv[1], type=Settings), sys.argv[2])
    await orchestrator.start()
    assert await orchestrator.wait_ready(20)
    request = chain(orchestrator, script(8, tensors={"rows": 2, "width": 2000}), script(hang_after=4))
    await request.start()
    async for _ in request:
        pass

asyncio.run(main())
"""


async def test_an_api_worker_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    config = pipeline(1, 1)
    async with cluster(tmp_path, config) as (orchestrator, _):
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, msgspec.json.encode(config), f"ipc://{tmp_path}/registry.sock", cwd=ROOT
        )
        await eventually(lambda: len(held(orchestrator)) >= 4)
        worker.kill()
        await worker.wait()
        await eventually(lambda: nothing_left(orchestrator))


# ------------------------------------------------------------------------------------------------ other hosts


@asynccontextmanager
async def two_hosts(path: Path, *local: int) -> AsyncIterator[tuple[Orchestrator, asyncio.subprocess.Process]]:
    """A stage of no local replicas runs on a host that shares no memory with this one."""
    config = with_tcp(pipeline(*local))
    config.master.heartbeat_timeout = 2
    async with elsewhere(config, local.index(0)) as process, cluster(path, config) as (orchestrator, _):
        yield orchestrator, process


@pytest.mark.parametrize("local", [(1, 0), (0, 1)], ids=["consumer elsewhere", "producer elsewhere"])
async def test_tensors_cross_hosts(tmp_path: Path, local: tuple[int, int]) -> None:
    async with two_hosts(tmp_path, *local) as (orchestrator, _):
        prompt = {"rows": 1, "width": 3584, "first_rows": 1000}
        for name, end in ENDS.items():
            if name != "consumer does not keep up":
                await meet(orchestrator, end, name)
        texts = await asyncio.gather(
            *(read(chain(orchestrator, script(4, tensors=prompt), script(), request_id=str(i))) for i in range(8))
        )
        assert [text for _, text in texts] == [said(4, width=3584, first_rows=1000)] * 8
        await eventually(lambda: nothing_left(orchestrator))


async def test_a_host_that_is_lost_while_it_is_pulled_from(tmp_path: Path) -> None:
    async with two_hosts(tmp_path, 0, 1) as (orchestrator, process):
        large = script(100, tensors={"rows": 1000, "width": 3584, "paced": True})
        texts: list[str] = []
        request = asyncio.create_task(read(chain(orchestrator, large, script(), timeout_s=30), texts))
        await eventually(lambda: texts != [] and texts[1] != "" and held_refs(process.pid) != [])
        process.send_signal(signal.SIGKILL)
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(request, 20)
        assert caught.value.status == 503
        assert caught.value.body.error.code in (m.INPUT_LOST, m.REPLICA_LOST)
        [survivor] = [replica.pid for replica in orchestrator.status()[1].replicas]
        await eventually(lambda: orchestrator.status()[1].replicas[0].load.running == 0)
        assert alive(survivor)
