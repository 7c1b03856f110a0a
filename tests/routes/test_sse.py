from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.cluster.messages import Delta, Done, Finish
from tests.routes.serving import ScriptedOrchestrator, Served, events, exchange

URL = "/v1/chat/completions"
STREAM = {"messages": [], "stream": True}


def silent_after_one(**server: Any) -> tuple[Served, asyncio.Event]:
    """A server whose stream says one word and then nothing until the event is set."""
    go_on = asyncio.Event()
    script = [[Delta(0, "one")], go_on, [Delta(0, "two"), Finish(0, "stop"), Done()]]
    return Served(ScriptedOrchestrator(script), **server), go_on


async def test_the_head_waits_for_the_engine_and_the_role_comes_with_it() -> None:
    served, _ = silent_after_one()
    accepted = asyncio.Event()
    served.orchestrator.before = accepted.wait
    async with exchange(served, URL, STREAM) as running:
        await asyncio.sleep(0.05)
        assert running.status == 0, "no response head before a replica has accepted the request"
        accepted.set()
        assert b'"role":"assistant"' in await running.chunk()
        assert running.status == 200


async def test_a_client_that_leaves_a_silent_stream_ends_the_work() -> None:
    served, _ = silent_after_one()
    async with exchange(served, URL, STREAM) as running:
        await running.chunk()
        await running.chunk()
        left = time.monotonic()
        running.leave()
        await running.rest()
        assert time.monotonic() - left < 1
    assert served.orchestrator.streams[0].closed.is_set()


async def test_a_client_that_leaves_while_the_server_cannot_send_ends_the_work() -> None:
    served, go_on = silent_after_one()
    blocked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def stuck(message: Any) -> None:
            if b"two" in message.get("body", b""):
                blocked.set()
                await asyncio.Event().wait()
            await send(message)

        await served.litestar(scope, receive, stuck)

    served.app = app  # type: ignore[method-assign]
    async with exchange(served, URL, STREAM) as running:
        go_on.set()
        await blocked.wait()
        running.leave()
        await running.rest()
    assert served.orchestrator.streams[0].closed.is_set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_engine_accepts(stream: bool) -> None:
    served = Served()
    cancelled = asyncio.Event()

    async def queue() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    served.orchestrator.before = queue
    async with exchange(served, URL, {"messages": [], "stream": stream}) as running:
        await asyncio.sleep(0.01)
        running.leave()
        await running.rest()
    assert cancelled.is_set()


async def test_a_client_that_leaves_a_whole_answer_ends_the_work() -> None:
    served, _ = silent_after_one()
    async with exchange(served, URL, {"messages": []}) as running:
        await asyncio.sleep(0.01)
        running.leave()
        await running.rest()
    assert served.orchestrator.streams[0].closed.is_set()


async def test_a_server_that_cancels_the_request_ends_the_work() -> None:
    served, _ = silent_after_one()
    async with exchange(served, URL, STREAM) as running:
        await running.chunk()
        running.task.cancel()
        await asyncio.wait({running.task}, timeout=5)
        assert running.task.cancelled()
    assert served.orchestrator.streams[0].closed.is_set()


async def test_comments_keep_a_silent_stream_alive() -> None:
    served, go_on = silent_after_one(sse_keep_alive_s=0.05)
    async with exchange(served, URL, STREAM) as running:
        await running.chunk()
        await running.chunk()
        assert [await running.chunk() for _ in range(3)] == [b": keep-alive\n\n"] * 3
        go_on.set()
        rest = await running.rest()
    assert events(rest)[0]["choices"][0]["delta"]["content"] == "two"
    assert events(rest)[-1] == "[DONE]"


async def test_comments_can_be_turned_off() -> None:
    served, go_on = silent_after_one(sse_keep_alive_s=0)
    async with exchange(served, URL, STREAM) as running:
        await asyncio.sleep(0.05)
        go_on.set()
        assert b": keep-alive" not in await running.rest()


async def test_a_stream_goes_on_after_a_stop_signal() -> None:
    served, go_on = silent_after_one()
    async with exchange(served, URL, STREAM) as running:
        await running.chunk()
        served.stopping.set()
        await asyncio.sleep(0.01)
        go_on.set()
        *_, finish, done = events(await running.rest())
    assert (finish["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


async def test_the_end_of_the_drain_ends_a_stream_with_an_error_and_done() -> None:
    served, _ = silent_after_one()
    async with exchange(served, URL, STREAM) as running:
        await running.chunk()
        await running.chunk()
        served.draining.set()
        error, done = events(await running.rest())
    assert (error["error"]["type"], error["error"]["code"]) == ("service_unavailable_error", "shutting_down")
    assert done == "[DONE]"
    assert served.orchestrator.streams[0].closed.is_set()


async def test_a_whole_answer_goes_on_after_a_stop_signal() -> None:
    served, go_on = silent_after_one()
    async with exchange(served, URL, {"messages": []}) as running:
        await asyncio.sleep(0.01)
        served.stopping.set()
        await asyncio.sleep(0.01)
        go_on.set()
        assert b'"content":"onetwo"' in await running.rest()
    assert running.status == 200


async def test_the_end_of_the_drain_ends_a_whole_answer_with_503() -> None:
    served, _ = silent_after_one()
    async with exchange(served, URL, {"messages": []}) as running:
        await asyncio.sleep(0.01)
        served.draining.set()
        assert b'"code":"shutting_down"' in await running.rest()
    assert running.status == 503
    assert served.orchestrator.streams[0].closed.is_set()


async def test_the_events_of_one_batch_leave_in_one_piece() -> None:
    served = Served(ScriptedOrchestrator([[Delta(0, word) for word in "abc"], [Finish(0, "stop"), Done()]]))
    async with exchange(served, URL, STREAM) as running:
        await running.task
        pieces = [running.chunks.get_nowait() for _ in range(running.chunks.qsize())]
    assert [len(events(piece)) for piece in pieces] == [1, 3, 1, 1]
