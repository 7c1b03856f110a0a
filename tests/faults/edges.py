"""The ways in which a request of two stages ends, where the first hands tensors to the second, on stub stages."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.refs import MAX_HELD
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from tests.clusters import cluster, eventually
from tests.handover import chain, held, pipeline, read, replicas, said, script

AT_A_TIME = 10
LEAVERS = 500
TIMEOUT_S = 0.5
FRAMES = {"rows": 2, "width": 2000}
"""8000 bytes: they travel by ref here."""
SPOKEN = said(8, **FRAMES)


class End(msgspec.Struct, frozen=True):
    """What the two stages do, and the status, code and words of what the client is told; no status: the answer is
    complete, and the second stage said `said`; or the client `leaves` in the middle.
    """

    producer: bytes
    consumer: bytes = script()
    status: int = 0
    code: str | None = None
    words: str = ""
    said: str = ""
    leaves: bool = False


ENDS = {
    "whole": End(script(8, tensors=FRAMES), said=SPOKEN),
    "client leaves": End(script(100, tensors=FRAMES, token_s=0.02), leaves=True),
    "empty": End(script(0)),
    "enough": End(script(8, tensors=FRAMES), script(3), said=said(3, **FRAMES)),
    "refused": End(script(8, tensors=FRAMES), script(refuse="not this"), 400, None, "not this"),
    "producer fails": End(script(8, tensors=FRAMES, fail_after=5), script(), 500, None, "RuntimeError in the engine"),
    "consumer fails": End(script(8, tensors=FRAMES), script(fail_after=5), 500, None, "RuntimeError in the engine"),
    "producer stalls": End(
        script(8, tensors=FRAMES, hang_after=5),
        script(),
        504,
        m.INPUT_TIMEOUT,
        "s1 got nothing from stage s0 for 0.5 s",
    ),
    "producer is late": End(
        script(8, tensors=FRAMES, token_s=3), script(), 504, m.INPUT_TIMEOUT, "s1 got nothing from stage s0 for 0.5 s"
    ),
    "consumer stalls": End(
        script(8, tensors=FRAMES),
        script(hang_after=5),
        504,
        m.INPUT_TIMEOUT,
        "stage s1 made nothing of what stage s0 had sent it for 0.5 s",
    ),
    "consumer does not keep up": End(
        script(2 * MAX_HELD, tensors=FRAMES),
        script(hang_after=1),
        503,
        m.TENSORS_FULL,
        f"stage s0 holds {MAX_HELD} tensors",
    ),
}
DEATHS = {
    "producer dies": End(
        script(8, tensors=FRAMES, exit_after=5, token_s=0.1), script(), 503, m.REPLICA_LOST, "was lost"
    ),
    "consumer dies": End(script(8, tensors=FRAMES), script(exit_after=5, token_s=0.1), 503, m.REPLICA_LOST, "was lost"),
}


def nothing_left(orchestrator: Orchestrator) -> bool:
    loads = [replica.load for stage in orchestrator.status() for replica in stage.replicas]
    return not held(orchestrator) and not any(load.running or load.waiting or load.held for load in loads)


def open_files(orchestrator: Orchestrator) -> dict[int, int]:
    """Of this process, which is the API worker here, and of all replicas."""
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *replicas(orchestrator))}


async def meet(orchestrator: Orchestrator, end: End, request_id: str = "r") -> None:
    """One request that ends so."""
    timeout_s = TIMEOUT_S if end.code == m.INPUT_TIMEOUT else 60
    request = chain(orchestrator, end.producer, end.consumer, request_id=request_id, timeout_s=timeout_s)
    if end.leaves:
        await request.start()
        for _ in range(3):
            await anext(request)
        await request.aclose()
        return
    if not end.status:
        assert (await read(request))[1] == end.said
        return
    with pytest.raises(ApiError) as caught:
        await read(request)
    error = caught.value.body.error
    assert (caught.value.status, error.code) == (end.status, end.code)
    assert end.words in error.message


async def idle(orchestrator: Orchestrator) -> None:
    """Wait until all replicas are up and hold and do nothing."""
    await eventually(lambda: orchestrator.ready and len(replicas(orchestrator)) == 4 and nothing_left(orchestrator))


async def many(orchestrator: Orchestrator, end: End, count: int) -> None:
    """So many requests that end so leave nothing in any process."""
    await idle(orchestrator)
    await meet(orchestrator, end)
    await idle(orchestrator)
    before = open_files(orchestrator)
    for start in range(0, count, AT_A_TIME):
        numbers = range(start, min(count, start + AT_A_TIME))
        await asyncio.gather(*(meet(orchestrator, end, f"r{number}") for number in numbers))
    await idle(orchestrator)
    await eventually(lambda: all(number <= before[pid] for pid, number in open_files(orchestrator).items()))


async def every_end(path: Path, count: int) -> None:
    """Each end `count` times, LEAVERS times that of clients that leave; the deaths one after the other."""
    async with cluster(path, pipeline(2, 2)) as (orchestrator, _):
        for end in ENDS.values():
            await many(orchestrator, end, LEAVERS if end.leaves else count)
        for death in DEATHS.values():
            await idle(orchestrator)
            await meet(orchestrator, death)
        await idle(orchestrator)
