"""POST /v1/audio/speech as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from app.protocol.errors import ApiError
from tests.routes.serving import Served, exchange
from tests.routes.speaking import EVENTS, asked, sound, speaking
from tests.routes.test_speech import PATH, USAGE

Event = tuple[str, dict[str, Any]]


def named_events(text: str) -> list[Event]:
    frames = [frame.split("\n") for frame in text.split("\n\n") if frame.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in frames]


async def events(served: Served, **fields: Any) -> list[Event]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(PATH, json={"input": "x", **fields})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return named_events(answer.text)


@pytest.mark.parametrize("fields", [{"stream_format": "sse"}, {"stream": True}])
async def test_deltas_and_what_they_cost(fields: dict[str, Any]) -> None:
    served = speaking(EVENTS)
    *deltas, done = await events(served, **fields)
    assert [name for name, _ in deltas] == ["speech.audio.delta"] * 3
    assert {data["type"] for _, data in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(data["audio"], validate=True) for _, data in deltas) == b"onetwothree"
    assert {data["sample_rate"] for _, data in deltas} == {24_000}
    assert done == ("speech.audio.done", {"type": "speech.audio.done", "usage": USAGE})
    assert (asked(served).streamed, asked(served).base64) == (True, True)


async def test_the_head_leaves_when_the_request_is_accepted() -> None:
    gate = asyncio.Event()
    served = speaking([gate, *EVENTS], sse_keep_alive_s=0.01)
    async with exchange(served, PATH, {"input": "x", "stream": True}) as running:
        assert await running.chunk() == b": keep-alive\n\n"
        gate.set()
        assert b"speech.audio.done" in await running.rest()


@pytest.mark.parametrize("failure", [ApiError(503, "gone", code="replica_lost"), RuntimeError("broken")])
async def test_a_failure_is_told_twice(failure: Exception) -> None:
    """By vllm-omni's name, and by the one that OpenAI's clients raise."""
    delta, told, last = await events(speaking([[sound(b"one", base64_=True)], failure]), stream=True)
    assert delta[0] == "speech.audio.delta"
    assert (told[0], told[1]["type"]) == ("speech.audio.error", "speech.audio.error")
    assert set(told[1]["error"]) == {"message", "type", "param", "code"}
    assert last == ("error", {"type": "error", "error": told[1]["error"]})


async def test_the_end_of_the_server_is_told() -> None:
    served = speaking([[sound(b"one", base64_=True)], asyncio.Event()])
    async with exchange(served, PATH, {"input": "x", "stream": True}) as running:
        await running.chunk()
        served.draining.set()
        told = named_events((await running.rest()).decode())
    assert [data["error"]["code"] for _, data in told] == ["shutting_down"] * 2
