"""Orchestrator, pool, registry, supervisor and replica together: real processes, the stub engine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.cluster import messages as m
from app.cluster.rundir import StartupError
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.request import CREDIT_WINDOW
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureTask, encode_task
from tests.clusters import body, cluster, read, settings, text_of


async def test_an_answer_comes_back_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        events = await read(await orchestrator.submit("chat", "r1", body("one two three")))
        assert text_of(events) == "one two three "
        assert [type(event) for event in events[-3:]] == [m.Finish, m.Usage, m.Done]
        assert orchestrator.capabilities().tasks == ["chat", "completion"]
        ((_, answer),) = await orchestrator.call_all("tokenize", 5)
        assert isinstance(answer, bytes)
        assert json.loads(answer)["count"] == 0


async def test_a_large_answer_that_comes_with_its_acceptance_is_delivered(tmp_path: Path) -> None:
    """Embeddings do: the one and the other leave the engine in the same turn, and the answer takes all credit."""
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        word = "x" * CREDIT_WINDOW
        for whole in (False, True):
            submitted = asyncio.create_task(orchestrator.submit("chat", f"r{whole}", body(word), whole=whole))
            await asyncio.sleep(0)
            time.sleep(0.3)  # noqa: ASYNC251 - the loop is busy while both arrive
            async with asyncio.timeout(10):
                events = await read(await submitted)
            assert text_of(events) == word + " "


@pytest.mark.parametrize("failing", [False, True])
async def test_the_body_goes_with_the_answer(tmp_path: Path, failing: bool) -> None:
    """Uploads can be large: they do not stay until garbage is collected."""
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body("one two", **({"fail_after": 1} if failing else {})))
        gone = weakref.ref(stream)
        gc.disable()
        try:
            with suppress(ApiError):
                await read(stream)
            await stream.aclose()
            del stream
            await asyncio.sleep(0)
            assert gone() is None
        finally:
            gc.enable()


async def test_two_hundred_at_once_are_not_mixed_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, token_s=0.001)) as (orchestrator, _):

        async def one(number: int) -> str:
            return text_of(await read(await orchestrator.submit("chat", f"r{number}", body(f"id {number} end"))))

        answers = await asyncio.gather(*(one(i) for i in range(200)))
        assert answers == [f"id {i} end " for i in range(200)]


async def test_a_refusal_comes_before_acceptance(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            await orchestrator.submit("chat", "r1", body(refuse="not like this"))
        assert (caught.value.status, caught.value.body.error.message) == (400, "not like this")
        with pytest.raises(ApiError) as caught:
            await orchestrator.submit("speech", "r2", b"{}")
        assert caught.value.status == 404


async def test_a_failure_in_the_middle_comes_after_what_was_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(token_s=0.01)) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body("a b c d", fail_after=2))
        seen: list[m.AnyEvent] = []
        with pytest.raises(ApiError) as caught:  # noqa: PT012 - what came before the error matters
            async for batch in stream:
                seen += batch
        assert caught.value.status == 500
        assert text_of(seen) == "a b "


async def running(orchestrator: Orchestrator) -> int:
    await asyncio.sleep(0.5)  # two heartbeats
    return sum(x.load.running for stage in orchestrator.status() for x in stage.replicas)


async def test_aclose_aborts_in_the_engine(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(token_s=0.05)) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body(tokens=1000))
        await anext(stream)
        assert await running(orchestrator) == 1
        await stream.aclose()
        assert await running(orchestrator) == 0


async def test_unheard_work_is_sent_once_more_when_a_replica_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, token_s=0.3)) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body("still here"))
        assert stream._stream is not None
        os.kill(stream._stream.connection.info.pid, signal.SIGKILL)
        assert text_of(await read(stream)) == "still here "


async def test_a_picture_of_which_nothing_was_seen_is_drawn_once_more_when_a_replica_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, token_s=0.2, draws=True)) as (orchestrator, _):
        task = encode_task(PictureTask(prompt="x", seed=3, num_inference_steps=4))
        stream = await orchestrator.submit("image", "r1", task)
        assert all(isinstance(event, m.Progress) for event in await anext(stream))
        assert stream._stream is not None
        os.kill(stream._stream.connection.info.pid, signal.SIGKILL)
        *progress, picture, _, done = await read(stream)
        assert isinstance(picture, m.Picture)
        assert (picture.seed, picture.preview, done) == (3, -1, m.Done())
        assert m.Progress(1, 4) in progress


async def test_streamed_work_fails_with_503_when_its_replica_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=2, token_s=0.05)) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body("a b c d e", exit_after=2))
        with pytest.raises(ApiError) as caught:
            await read(stream)
        assert (caught.value.status, caught.value.body.error.code) == (503, "replica_lost")


async def test_poison_is_not_sent_to_a_third_replica(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(replicas=3)) as (orchestrator, _):
        with pytest.raises(ApiError) as caught:
            await read(await orchestrator.submit("chat", "r1", body("a", exit_after=0)))
        assert caught.value.body.error.code == "replica_lost"
        await asyncio.sleep(0.3)
        assert sum(x.state == "up" for x in orchestrator.status()[0].replicas) >= 1


async def test_a_dead_replica_is_seen_at_once_and_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        (replica,) = orchestrator.status()[0].replicas
        os.kill(replica.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert not orchestrator.ready
        with pytest.raises(ApiError) as caught:
            await orchestrator.submit("chat", "r1", body("x"))
        assert caught.value.status == 503
        assert await orchestrator.wait_ready(10)
        assert text_of(await read(await orchestrator.submit("chat", "r2", body("back again")))) == "back again "


async def test_a_slow_reader_gets_everything_and_costs_bounded_memory(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body(tokens=20_000))
        await asyncio.sleep(1)
        assert stream._stream is not None
        held = sum(map(m.cost, stream._stream._events))
        assert held <= (1 << 20) + 1000, "more than the credit window was sent to a client that does not read"
        events = await read(stream)
        assert text_of(events) == "".join(f"w{i} " for i in range(20_000))
        assert sum(event.tokens for event in events if isinstance(event, m.Delta)) == 20_000


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({"load_exit": 7}, ["stage 0", "stub", "exit code 7"]),
        ({"load_error": "no such checkpoint"}, ["stage 0", "no such checkpoint"]),
        ({"nonsense": 1}, ["stage 0", "nonsense"]),
    ],
)
async def test_a_failed_start_names_stage_and_cause(
    tmp_path: Path, engine_args: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(StartupError) as caught:
        async with cluster(tmp_path, settings(**engine_args)):
            pass
    for word in words:
        assert word in str(caught.value)


async def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    config = settings(load_s=60)
    config.master.stage_init_timeout = 1
    with pytest.raises(StartupError, match="--stage-init-timeout 1 s"):
        async with cluster(tmp_path, config):
            pass


async def test_a_full_queue_answers_429_with_retry_after(tmp_path: Path) -> None:
    config = settings(slots=2, token_s=0.2)
    config.stages[0].max_queue = 3
    async with cluster(tmp_path, config) as (orchestrator, _):
        streams = [await orchestrator.submit("chat", f"r{i}", body("a b c")) for i in range(5)]
        with pytest.raises(ApiError) as caught:
            await orchestrator.submit("chat", "r5", body("a b c"))
        assert (caught.value.status, caught.value.body.error.code) == (429, "queue_full")
        assert "Retry-After" in caught.value.headers
        assert [text_of(await read(stream)) for stream in streams] == ["a b c "] * 5
        assert text_of(await read(await orchestrator.submit("chat", "r6", body("room again")))) == "room again "


async def test_a_full_replica_passes_the_request_on_to_one_with_room(tmp_path: Path) -> None:
    config = settings(replicas=2, slots=1, token_s=0.2)
    config.stages[0].max_queue = 0
    config.stages[0].lb_policy = "random"
    async with cluster(tmp_path, config) as (orchestrator, _):
        streams = [await orchestrator.submit("chat", f"r{i}", body("a b")) for i in range(2)]
        with pytest.raises(ApiError, match="busy"):
            await orchestrator.submit("chat", "r2", body("a b"))
        for stream in streams:
            await read(stream)


async def test_a_deadline_ends_the_request_with_504(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings(token_s=0.1)) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body(tokens=1000), limit_s=0.5)
        with pytest.raises(ApiError) as caught:
            await read(stream)
        assert (caught.value.status, caught.value.body.error.code) == (504, "deadline_exceeded")
        assert await running(orchestrator) == 0


async def test_who_does_not_read_is_ended(tmp_path: Path) -> None:
    config = settings()
    config.server.slow_client_timeout_s = 0.5
    async with cluster(tmp_path, config) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body(tokens=50_000))
        await asyncio.sleep(1.5)
        with pytest.raises(ApiError) as caught:
            await read(stream)
        assert caught.value.body.error.code == "slow_client"


@pytest.mark.parametrize("busy", [True, False])
async def test_a_stopped_replica_is_given_up_and_replaced(tmp_path: Path, busy: bool) -> None:
    config = settings(token_s=0.01)
    config.master.stall_timeout = config.master.heartbeat_timeout = 1.5
    async with cluster(tmp_path, config) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body(tokens=100_000)) if busy else None
        await asyncio.sleep(0.5)
        os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGSTOP)
        if stream is not None:
            with pytest.raises(ApiError) as caught:
                await read(stream)
            assert caught.value.status == 503
        async with asyncio.timeout(5):
            while orchestrator.ready:  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.05)
        assert await orchestrator.wait_ready(10)
        assert text_of(await read(await orchestrator.submit("chat", "r2", body("well again")))) == "well again "


async def test_an_engine_that_makes_no_step_is_given_up(tmp_path: Path) -> None:
    config = settings()
    config.master.stall_timeout = 1.0
    async with cluster(tmp_path, config) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r1", body("a b", hang_after=1))
        with pytest.raises(ApiError) as caught:
            await read(stream)
        assert caught.value.body.error.code == "replica_lost"
        assert await orchestrator.wait_ready(10)


async def test_a_replica_that_leaves_costs_no_request(tmp_path: Path) -> None:
    """Between its signal and the news of it, it refuses what it is sent; another one takes that."""
    async with cluster(tmp_path, settings(replicas=2, token_s=0.02)) as (orchestrator, _):
        texts: list[str] = []

        async def keep_asking(worker: int) -> None:
            for number in range(12):
                asked = f"{worker} {number} x y z"
                texts.append(text_of(await read(await orchestrator.submit("chat", f"r{worker}-{number}", body(asked)))))

        asking = asyncio.gather(*(keep_asking(worker) for worker in range(20)))
        await asyncio.sleep(0.3)
        os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGTERM)
        await asking
        assert sorted(texts) == sorted(f"{worker} {number} x y z " for worker in range(20) for number in range(12))
