"""POST /v1/audio/speech/batch over a scripted model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.protocol.errors import ApiError
from app.protocol.speechtask import SpeechTask, VoiceSample, decode_task
from tests.routes.serving import Served, exchange
from tests.routes.speaking import EVENTS, speaking
from tests.routes.test_speech import USAGE, error

PATH = "/v1/audio/speech/batch"


@pytest.fixture
def served() -> Served:
    return speaking(EVENTS)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def tasks(served: Served) -> list[SpeechTask]:
    return [decode_task(body) for _, _, body, _ in served.orchestrator.submitted]


def refuse(served: Served, *refusals: ApiError | None) -> None:
    """What the replica says to the first, the second, ... of the tasks."""
    turns = iter(refusals)

    async def answer() -> None:
        if (refusal := next(turns, None)) is not None:
            raise refusal

    served.orchestrator.before = answer


async def test_each_item_has_its_sound(client: httpx.AsyncClient, served: Served) -> None:
    body = {"items": [{"input": "a"}, {"input": "b", "response_format": "pcm"}], "response_format": "wav"}
    answer = (await client.post(PATH, json=body)).json()
    assert answer.pop("id").startswith("speech-batch-")
    assert [base64.b64decode(item.pop("audio_data")) for item in answer["results"]] == [b"onetwothree"] * 2
    common = {"status": "success", "sample_rate": 24_000, "usage": USAGE}
    assert answer == {
        "total": 2,
        "succeeded": 2,
        "failed": 0,
        "results": [
            {"index": 0, "media_type": "audio/wav", **common},
            {"index": 1, "media_type": "audio/pcm", **common},
        ],
    }
    assert [(task.text, task.format, task.streamed, task.base64) for task in tasks(served)] == [
        ("a", "wav", False, True),
        ("b", "pcm", False, True),
    ]


async def test_an_item_takes_from_the_batch_what_it_does_not_say(client: httpx.AsyncClient, served: Served) -> None:
    items = [{"input": "a", "speed": 2}, {"input": "b", "voice": "stone", "extra_params": {}}]
    shared = {"speed": 0.5, "seed": 3, "ref_audio": "data:,x", "ref_text": "hi", "extra_params": {"p": 1}}
    await client.post(PATH, json={"items": items, **shared})
    first, second = tasks(served)
    assert (first.speed, first.seed, first.extra) == (2, 3, {"p": 1})
    assert first.sample == VoiceSample(url="data:,x", text="hi")
    assert (second.speed, second.voice, second.sample, second.extra) == (0.5, "stone", None, {})


async def test_an_item_that_cannot_be_spoken_fails_alone(client: httpx.AsyncClient, served: Served) -> None:
    refuse(served, None, ApiError(400, "no such voice", param="voice"))
    items = [
        {"input": "a"},
        {"input": ""},
        {"input": "b", "voice": "nobody"},
        {"input": "c", "speed": 9},
        {"inpt": "d"},
    ]
    response = await client.post(PATH, json={"items": items})
    answer = response.json()
    assert response.status_code == 200
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (5, 1, 4)
    assert [item["status"] for item in answer["results"]] == ["success"] + ["error"] * 4
    errors = [item["error"] for item in answer["results"][1:]]
    assert all(set(item) == {"message", "type", "param", "code"} for item in errors)
    params = [item["param"] for item in errors]
    assert params == ["items[1].input", "items[2].voice", "items[3].speed", "items[4].inpt"]


@pytest.mark.parametrize(
    ("refusals", "status", "param"),
    [
        ([ApiError(400, "a", param="voice"), ApiError(413, "b")], 400, "items[0].voice"),
        ([ApiError(400, "a"), ApiError(503, "b", code="no_replica", headers={"Retry-After": "2"})], 503, "items[1]"),
        ([ApiError(429, "busy", code="queue_full"), ApiError(400, "a")], 429, "items[0]"),
    ],
)
async def test_a_batch_of_which_nothing_works_is_an_error(
    client: httpx.AsyncClient, served: Served, refusals: list[ApiError], status: int, param: str
) -> None:
    refuse(served, *refusals)
    answer = await client.post(PATH, json={"items": [{"input": "a"}, {"input": "b"}]})
    assert error(answer, status)[0] == param
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("items", {}),
        ("items", {"items": []}),
        ("items", {"items": [{"input": "x"}] * 33}),
        ("items", {"items": "x"}),
        ("items[0]", {"items": ["x"]}),
        ("items[0].model", {"items": [{"input": "x", "model": "smol"}]}),
        ("items[0].stream", {"items": [{"input": "x", "stream": True}]}),
        ("stream", {"items": [{"input": "x"}], "stream": True}),
        ("speed", {"items": [{"input": "x"}], "speed": 5}),
    ],
)
async def test_refused(client: httpx.AsyncClient, served: Served, param: str, body: dict[str, Any]) -> None:
    assert error(await client.post(PATH, json=body))[0] == param
    assert served.orchestrator.submitted == []


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json={"items": [{"input": "x"}], "model": "tts-1"})
    assert error(answer, 404) == ("model", "model_not_found")


async def test_items_are_spoken_side_by_side_within_bounds() -> None:
    gate = asyncio.Event()
    served = speaking([gate, *EVENTS])
    async with exchange(served, PATH, {"items": [{"input": str(i)} for i in range(20)]}) as running:
        await served.orchestrator.accepted.wait()
        await asyncio.sleep(0.1)
        assert len(served.orchestrator.submitted) == 8
        gate.set()
        assert b'"succeeded":20' in await running.rest()
    assert all(stream.closed.is_set() for stream in served.orchestrator.streams)


async def test_work_for_a_client_that_left_ends() -> None:
    served = speaking([asyncio.Event()])
    async with exchange(served, PATH, {"items": [{"input": str(i)} for i in range(20)]}) as running:
        await served.orchestrator.accepted.wait()
        running.leave()
        await asyncio.wait_for(running.task, 5)
    assert len(served.orchestrator.submitted) <= 8
    assert all(stream.closed.is_set() for stream in served.orchestrator.streams)
