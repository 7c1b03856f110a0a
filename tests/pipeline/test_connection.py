"""An API worker's line to a replica: a real one for what works, none for what is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.refs import Ref
from app.cluster.transport import new_context
from app.engines import stubpictures
from app.pipeline.connection import Connection, ReplicaLostError, Stream, api_error
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.request import CREDIT_WINDOW
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureTask, encode_task
from tests.clusters import body, cluster, eventually, held_refs, settings, text_of

NOWHERE = m.ReplicaInfo(0, 0, "ipc:///nowhere/r.sock", "up", "here", 1, m.Load(), m.Capabilities())


@asynccontextmanager
async def to_nowhere() -> AsyncIterator[Connection]:
    context = new_context()
    connection = Connection(context, NOWHERE, "client", Access())
    try:
        yield connection
    finally:
        connection.close()
        context.term()


@asynccontextmanager
async def to_a_replica(
    path: Path, threshold: int = 64 << 10, **engine_args: object
) -> AsyncIterator[tuple[Orchestrator, Connection]]:
    config = settings(**engine_args)
    config.stages[0].shm_threshold_bytes = threshold
    async with cluster(path, config) as (orchestrator, _):
        context = new_context()
        connection = Connection(context, orchestrator.status()[0].replicas[0], "another client", Access())
        try:
            yield orchestrator, connection
        finally:
            connection.close()
            context.term()


async def until_end(stream: Stream) -> list[m.AnyEvent]:
    events: list[m.AnyEvent] = []
    while not events or not isinstance(events[-1], m.Done | m.Failed):
        events += await asyncio.wait_for(stream.next_batch(), 5)
    return events


async def test_streams_side_by_side_keep_their_own_events(tmp_path: Path) -> None:
    async with to_a_replica(tmp_path, token_s=0.01) as (_, connection):
        streams = [connection.submit(m.Submit(f"r{i}", "chat"), body(f"I am {i}")) for i in range(10)]
        assert connection.in_flight == 10
        texts = [text_of(await until_end(stream)) for stream in streams]
        assert texts == [f"I am {i} " for i in range(10)]
        for stream in streams:
            connection.release(stream)
            connection.release(stream)
        assert connection.in_flight == 0


async def test_a_released_stream_is_aborted_and_hears_no_more(tmp_path: Path) -> None:
    async with to_a_replica(tmp_path, token_s=0.02) as (orchestrator, connection):

        def running() -> int:
            return orchestrator.status()[0].replicas[0].load.running

        stream = connection.submit(m.Submit("r", "chat"), body(tokens=10_000))
        await stream.next_batch()
        await eventually(lambda: running() == 1)
        connection.release(stream)
        await eventually(lambda: running() == 0)
        stream._events.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.next_batch(), 0.2)


async def test_credit_lets_the_rest_through(tmp_path: Path) -> None:
    async with to_a_replica(tmp_path) as (_, connection):
        stream = connection.submit(m.Submit("r", "chat", "", 1000), body(tokens=100))
        await asyncio.sleep(0.3)
        events = await stream.next_batch()
        assert not stream.ended
        assert sum(map(m.cost, events)) <= 1000 + m.cost(m.Delta(0, "w99 "))
        connection.credit("r", 1 << 20)
        events += await until_end(stream)
        assert text_of(events) == "".join(f"w{i} " for i in range(100))


async def test_calls(tmp_path: Path) -> None:
    async with to_a_replica(tmp_path) as (_, connection):
        answers = await asyncio.gather(*(connection.call("tokenize", body("x " * n)) for n in range(1, 6)))
        assert [answer.startswith(b'{"count":%d,' % n) for n, answer in enumerate(answers, start=1)] == [True] * 5
        with pytest.raises(ApiError) as caught:
            await connection.call("fly", b"{}")
        assert caught.value.status == 404


async def test_a_call_to_a_replica_that_goes_away_is_lost(tmp_path: Path) -> None:
    async with to_nowhere() as connection:
        call = asyncio.create_task(connection.call("tokenize", b"{}"))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ReplicaLostError):
            await asyncio.wait_for(call, 1)


async def test_what_has_arrived_is_handed_out_before_the_loss_is_told() -> None:
    async with to_nowhere() as connection:
        stream = connection.submit(m.Submit("r", "chat"), b"")
        stream.push(m.Accepted())
        stream.push(m.Delta(0, "x"))
        connection.close()
        assert await stream.next_batch() == [m.Accepted(), m.Delta(0, "x")]
        for _ in range(2):
            with pytest.raises(ReplicaLostError):
                await asyncio.wait_for(stream.next_batch(), 1)


async def test_nothing_is_wrong_with_speaking_to_a_connection_that_is_closed() -> None:
    async with to_nowhere() as connection:
        stream = connection.submit(m.Submit("r", "chat"), b"")
        connection.close()
        connection.credit("r", 5)
        connection.ping()
        connection.release(stream)
        assert connection.in_flight == 0


async def test_a_reader_that_owes_credit_to_a_dead_replica_is_told_of_the_loss(tmp_path: Path) -> None:
    """The credit for what came before is returned when the next batch is asked for; the socket is closed by then."""
    async with cluster(tmp_path, settings()) as (orchestrator, _):
        stream = await orchestrator.submit("chat", "r", body(tokens=50_000))
        while stream._owed < CREDIT_WINDOW // 4:
            await anext(stream)
        os.kill(orchestrator.status()[0].replicas[0].pid, signal.SIGKILL)
        await eventually(lambda: not orchestrator.ready)
        with pytest.raises(ApiError) as caught:
            async for _ in stream:
                pass
        assert (caught.value.status, caught.value.body.error.code) == (503, m.REPLICA_LOST)


async def test_where_a_replica_is_from() -> None:
    async with to_nowhere() as connection:
        assert connection.local
        assert connection.replica == ("ipc:///nowhere/r.sock", 1)


@pytest.mark.parametrize(("status", "retry"), [(400, False), (429, True), (500, False), (503, True)])
def test_a_failure_keeps_its_fields_and_says_when_to_retry(status: int, retry: bool) -> None:
    error = api_error(m.Failed(status, "why", "some_type", "messages", "some_code"))
    body = error.body.error
    assert (error.status, body.message, body.type, body.param, body.code) == (
        status,
        "why",
        "some_type",
        "messages",
        "some_code",
    )
    assert ("Retry-After" in error.headers) is retry


# ------------------------------------------------------------------------------------------------ large data


TASK = PictureTask(prompt="x", seed=5, previews=1)


async def drawn(connection: Connection, request_id: str = "r") -> tuple[Stream, list[m.Picture]]:
    stream = connection.submit(m.Submit(request_id, "image"), encode_task(TASK))
    return stream, [event for event in await until_end(stream) if isinstance(event, m.Picture)]


@pytest.mark.parametrize(("threshold", "referred"), [(0, True), (64 << 10, False)])
async def test_pictures_arrive_equal_on_either_way(tmp_path: Path, threshold: int, referred: bool) -> None:
    async with to_a_replica(tmp_path, threshold, draws=True) as (_, connection):
        stream, pictures = await drawn(connection)
        assert [bytes(picture.data) for picture in pictures] == [stubpictures.picture(TASK, 0).data] * 2
        assert [picture.ref is not None for picture in pictures] == [referred] * 2
        assert len(held_refs(connection.info.pid)) == 2 * referred
        maps = Path("/proc/self/maps").read_text
        assert ("/memfd:omni-" in maps()) == referred
        connection.release(stream)
        connection.release_refs(stream)
        await eventually(lambda: held_refs(connection.info.pid) == [])
        assert "/memfd:omni-" not in maps()


async def test_a_replica_elsewhere_is_not_asked_for_refs() -> None:
    context = new_context()
    info = m.ReplicaInfo(0, 0, "tcp://127.0.0.1:9", "up", "there", os.getpid(), m.Load(), m.Capabilities())
    connection = Connection(context, info, "client", Access())
    submit = m.Submit("r", "image")
    connection.submit(submit, b"")
    connection.close()
    context.term()
    assert not submit.refs


async def test_who_comes_too_late_for_a_picture_has_lost_its_replica(tmp_path: Path) -> None:
    async with to_a_replica(tmp_path, 0, draws=True) as (_, connection):
        stream = connection.submit(m.Submit("r", "image"), encode_task(TASK))
        gone = m.Picture(0, memoryview(b""), "png", 8, 8, 5, ref=Ref(connection.info.pid, 0, "omni-gone", 9))
        assert not connection._resolve(stream, gone)
        with pytest.raises(ReplicaLostError):
            await asyncio.wait_for(stream.next_batch(), 1)
        _, pictures = await drawn(connection, "another")
        assert len(pictures) == 2
