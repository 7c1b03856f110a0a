"""POST /v1/audio/generate over a scripted model that makes sound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.cluster.messages import Progress
from app.protocol.soundtask import SoundTask, decode_task
from tests.routes.serving import Served
from tests.routes.speaking import speaking, speech
from tests.routes.test_speech import error

PATH = "/v1/audio/generate"


@pytest.fixture
def served() -> Served:
    served = speaking([[Progress(1, 2)], *speech(b"rain")])
    served.orchestrator.tasks = ["sound"]
    return served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def asked(served: Served) -> SoundTask:
    kind, _, body, _ = served.orchestrator.submitted[-1]
    assert kind == "sound"
    return decode_task(body)


async def test_a_sound(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(PATH, json={"input": "rain"})
    assert answer.content == b"rain"
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["x-sample-rate"] == "24000"
    assert asked(served) == SoundTask(prompt="rain")


async def test_every_field_reaches_the_task(client: httpx.AsyncClient, served: Served) -> None:
    body = {
        "input": "rain",
        "model": "smol",
        "response_format": "flac",
        "sample_rate": 44_100,
        "speed": 1,
        "stream_format": "audio",
        "audio_length": 2.5,
        "audio_start": 1,
        "negative_prompt": "wind",
        "guidance_scale": 7,
        "num_inference_steps": 50,
        "seed": 3,
        "extra_params": {"eta": 1},
    }
    answer = await client.post(PATH, json=body)
    assert answer.headers["content-type"] == "audio/flac"
    assert asked(served) == SoundTask(
        prompt="rain",
        negative_prompt="wind",
        seconds=2.5,
        start=1,
        num_inference_steps=50,
        guidance_scale=7,
        seed=3,
        format="flac",
        sample_rate=44_100,
        extra={"eta": 1},
    )


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": ""}),
        ("input", {"input": "\t"}),
        ("stream_format", {"stream_format": "sse"}),
        ("speed", {"speed": 2}),
        ("audio_length", {"audio_length": 0}),
        ("audio_start", {"audio_start": -1}),
        ("audio_start", {"audio_start": 1}),
        ("guidance_scale", {"guidance_scale": -1}),
        ("num_inference_steps", {"num_inference_steps": 0}),
        ("seed", {"seed": -1}),
        ("response_format", {"response_format": "ogg"}),
        ("n", {"n": 2}),
        ("voice", {"voice": "heart"}),
        ("extra_params.a", {"extra_params": {"a": 2**64}}),
    ],
)
async def test_refused(client: httpx.AsyncClient, served: Served, param: str, fields: dict[str, Any]) -> None:
    assert error(await client.post(PATH, json={"input": "rain", **fields}))[0] == param
    assert served.orchestrator.submitted == []


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    assert error(await client.post(PATH, json={"input": "x", "model": "y"}), 404) == ("model", "model_not_found")
