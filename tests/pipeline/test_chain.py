"""Requests that several stages work on: what one makes the next one gets, whole and in order, at its own pace."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines import outflow
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from tests.clusters import cluster, eventually, held_refs
from tests.handover import chain, held, pipeline, read, replicas, said, script

HIDDEN = {"rows": 1, "width": 3584}
PROMPT = {**HIDDEN, "first_rows": 300}
"""2 MiB first, then 7 KiB a step, which travels by ref here."""
PASSES = script(tensors={"hands_on": True})
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    async with cluster(tmp_path_factory.mktemp("chain"), pipeline(1, 2, 1)) as (orchestrator, _):
        yield orchestrator


@pytest_asyncio.fixture(loop_scope="module")
async def orchestrator(running: Orchestrator) -> AsyncIterator[Orchestrator]:
    """All stages up; after the test they hold nothing and do nothing."""
    await eventually(lambda: running.ready and len(replicas(running)) == 4)
    yield running
    await eventually(lambda: not held(running))
    await eventually(lambda: not any(load.running or load.held for load in loads(running)))


def loads(orchestrator: Orchestrator) -> list[m.Load]:
    return [replica.load for stage in orchestrator.status() for replica in stage.replicas]


async def test_everything_arrives_in_order(orchestrator: Orchestrator) -> None:
    for request in range(3):
        texts = await read(chain(orchestrator, script(20, tensors=PROMPT), PASSES, script(), request_id=str(request)))
        words = "".join(f"w{number} " for number in range(20))
        assert texts == [words, *[said(20, width=3584, first_rows=300)] * 2]


async def test_many_at_once_are_not_mixed_up(orchestrator: Orchestrator) -> None:
    requests = [
        chain(orchestrator, script(number, tensors={"rows": number + 1}), script(), request_id=f"r{number}")
        for number in range(40)
    ]
    texts = await asyncio.gather(*map(read, requests))
    assert [taken for _, taken in texts] == [said(number, rows=number + 1) for number in range(40)]


async def test_no_input_at_all_is_an_input_too(orchestrator: Orchestrator) -> None:
    assert await read(chain(orchestrator, script(0), script())) == ["", ""]


async def test_text_does_not_wait_for_a_stage_that_is_slow(orchestrator: Orchestrator) -> None:
    """What that is not ready for stays with its producer, small tensors too."""
    frames = 3 * outflow.WINDOW // (4000)
    request = chain(orchestrator, script(frames, tensors={"width": 2000}), script(hang_after=1))
    await request.start()
    text = ""
    async for position, events in request:
        text += "".join(event.text for event in events if isinstance(event, m.Delta) and position == 0)
        if f"w{frames - 1} " in text:
            break
    # The engine of the producer is done; only the sending is not.
    await eventually(lambda: loads(orchestrator)[0].held > outflow.WINDOW and loads(orchestrator)[0].running == 0)
    await request.aclose()


async def test_a_paced_producer_waits_for_the_next_stage(orchestrator: Orchestrator) -> None:
    made = script(200, tensors={"rows": 100, "width": 3584, "paced": True})
    texts = [""]
    request = asyncio.create_task(read(chain(orchestrator, made, script(hang_after=2)), texts))
    await eventually(lambda: len(held(orchestrator)) >= 5)
    await asyncio.sleep(0.5)
    assert len(held(orchestrator)) <= 12, "six are in the window, one waits; the next stage has mapped two or three"
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_refs_are_let_go_of_as_they_are_used(orchestrator: Orchestrator) -> None:
    texts: list[str] = []
    made = script(3, tensors={"rows": 100, "width": 100})
    request = asyncio.create_task(read(chain(orchestrator, made, script(hang_after=3)), texts))
    await eventually(lambda: len(texts) == 2 and texts[1] == said(3, 100, 100))
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_stage_that_has_enough_ends_before_its_input(orchestrator: Orchestrator) -> None:
    texts = await read(chain(orchestrator, script(50, tensors=PROMPT, token_s=0.01), script(2)))
    assert texts == ["".join(f"w{number} " for number in range(50)), said(2, width=3584, first_rows=300)]


async def test_what_any_stage_refuses_is_told_before_anything_is_made(orchestrator: Orchestrator) -> None:
    for scripts in ((script(1), script(refuse="not this")), (script(1, refuse="not this"), script())):
        with pytest.raises(ApiError) as caught:
            await read(chain(orchestrator, *scripts))
        assert (caught.value.status, caught.value.body.error.message) == (400, "not this")


async def victim(orchestrator: Orchestrator, stage: int) -> int:
    """The replica of the stage that has a request."""

    def busy() -> list[int]:
        return [replica.pid for replica in orchestrator.status()[stage].replicas if replica.load.running]

    await eventually(lambda: len(busy()) == 1)
    return busy()[0]


async def test_input_that_was_not_used_is_sent_once_more(orchestrator: Orchestrator) -> None:
    slow = script(token_s=1.5)  # it has got the first frame and makes something of it
    request = asyncio.create_task(read(chain(orchestrator, script(3, tensors=PROMPT), slow)))
    os.kill(await victim(orchestrator, 1), signal.SIGKILL)
    assert (await request)[1] == said(3, width=3584, first_rows=300)


async def test_input_that_was_used_is_not(orchestrator: Orchestrator) -> None:
    request = asyncio.create_task(read(chain(orchestrator, script(3, tensors=PROMPT), script(exit_after=1))))
    with pytest.raises(ApiError) as caught:
        await request
    assert (caught.value.status, caught.value.body.error.code) == (503, m.REPLICA_LOST)


async def test_input_whose_producer_is_gone_is_not_sent_once_more(orchestrator: Orchestrator) -> None:
    request = asyncio.create_task(read(chain(orchestrator, script(1, tensors=PROMPT), script(token_s=30))))
    taker = await victim(orchestrator, 1)
    [maker] = [replica.pid for replica in orchestrator.status()[0].replicas]
    await eventually(lambda: len(held_refs(maker)) == 1)
    os.kill(maker, signal.SIGKILL)
    await eventually(lambda: maker not in replicas(orchestrator))
    os.kill(taker, signal.SIGKILL)
    with pytest.raises(ApiError) as caught:
        await request
    assert (caught.value.status, caught.value.body.error.code) == (503, m.REPLICA_LOST)
