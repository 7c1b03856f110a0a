"""POST /v1/audio/speech over a scripted model: what reaches the replica, and the file that comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done, Usage
from app.protocol.errors import ApiError
from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechTask, VoiceSample
from tests.routes.serving import Served, exchange
from tests.routes.speaking import SPEECH, asked, sound, speaking

PATH = "/v1/audio/speech"
USAGE = {
    "input_tokens": 3,
    "output_tokens": 8,
    "total_tokens": 11,
    "input_token_details": {"text_tokens": 2, "audio_tokens": 1},
}


@pytest.fixture
def served() -> Served:
    return speaking()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def error(answer: httpx.Response, status: int = 400) -> tuple[str | None, str | None]:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found["param"], found["code"]


async def task_of(client: httpx.AsyncClient, served: Served, **fields: Any) -> SpeechTask:
    answer = await client.post(PATH, json={"input": "x", **fields})
    assert answer.status_code == 200, answer.text
    return asked(served)


# ------------------------------------------------------------------------------------------------ the answer


@pytest.mark.parametrize("format", CONTENT_TYPES)
async def test_a_whole_file(client: httpx.AsyncClient, served: Served, format: str) -> None:
    answer = await client.post(PATH, json={"input": "x", "response_format": format, "stream": False})
    assert answer.content == b"onetwothree"
    assert answer.headers["content-type"] == CONTENT_TYPES[format]
    assert answer.headers["content-length"] == "11"
    assert answer.headers["x-sample-rate"] == "24000"
    assert json.loads(answer.headers["x-usage"]) == USAGE
    assert (asked(served).format, asked(served).streamed, asked(served).base64) == (format, False, False)


@pytest.mark.parametrize("format", CONTENT_TYPES)
async def test_the_same_file_in_pieces(client: httpx.AsyncClient, served: Served, format: str) -> None:
    answer = await client.post(PATH, json={"input": "x", "response_format": format, "stream_format": "audio"})
    assert answer.content == b"onetwothree"
    assert answer.headers["content-type"] == CONTENT_TYPES[format]
    assert "content-length" not in answer.headers
    assert answer.headers["x-sample-rate"] == "24000"
    assert (asked(served).streamed, asked(served).base64) == (True, False)


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [
        ({}, True),
        ({"response_format": "opus"}, True),
        ({"response_format": "pcm"}, True),
        ({"response_format": "wav"}, False),
        ({"response_format": "flac"}, False),
        ({"response_format": "mp3", "stream": False}, False),
        ({"response_format": "wav", "stream_format": "audio"}, True),
        ({"stream": True, "stream_format": "audio"}, True),
    ],
)
async def test_what_loses_nothing_comes_in_pieces(
    client: httpx.AsyncClient, served: Served, fields: dict[str, Any], streamed: bool
) -> None:
    task = await task_of(client, served, **fields)
    assert (task.streamed, task.base64) == (streamed, False)


async def test_pieces_come_as_they_are_made() -> None:
    gate = asyncio.Event()
    served = speaking([[sound(b"one")], gate, [sound(b"two")], [Usage(1, 1), Done()]])
    async with exchange(served, PATH, {"input": "x"}) as running:
        assert await running.chunk() == b"one"
        assert running.status == 200
        gate.set()
        assert await running.rest() == b"two"


async def test_nothing_leaves_before_the_first_sound() -> None:
    gate = asyncio.Event()
    served = speaking([[sound(b"")], gate, ApiError(503, "lost", code="replica_lost")])
    async with exchange(served, PATH, {"input": "x"}) as running:
        await served.orchestrator.accepted.wait()
        await asyncio.sleep(0.05)
        assert running.status == 0
        gate.set()
        body = json.loads(await running.rest())
    assert (running.status, body["error"]["code"]) == (503, "replica_lost")


@pytest.mark.parametrize("failure", [ApiError(500, "broken"), RuntimeError("broken")])
async def test_a_failure_after_the_first_sound_breaks_the_connection(failure: Exception) -> None:
    """No piece with more_body false: the server then closes the connection without the last chunk."""
    served = speaking([[sound(b"one")], failure])
    with pytest.raises(AssertionError):  # httpx insists on the end of a response
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
            await client.post(PATH, json={"input": "x"})
    assert served.orchestrator.streams[-1].closed.is_set()


async def test_the_end_of_the_server_breaks_the_connection() -> None:
    served = speaking([[sound(b"one")], asyncio.Event()])
    async with exchange(served, PATH, {"input": "x"}) as running:
        assert await running.chunk() == b"one"
        served.draining.set()
        assert await running.rest() == b""
    assert served.orchestrator.streams[-1].closed.is_set()


async def test_work_for_a_client_that_left_ends() -> None:
    for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
        served = speaking([[sound(b"one")], asyncio.Event()])
        async with exchange(served, PATH, {"input": "x", **fields}) as running:
            await served.orchestrator.accepted.wait()
            running.leave()
            await asyncio.wait_for(served.orchestrator.streams[-1].closed.wait(), 5)


@pytest.mark.parametrize("stream", [None, False])
async def test_a_model_that_makes_no_sound_has_failed(stream: bool | None) -> None:
    served = speaking([[sound(b"")], [Usage(1, 0), Done()]])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(PATH, json={"input": "x", "stream": stream})
    assert error(answer, 500) == (None, "no_sound")


async def test_the_shortest_text(client: httpx.AsyncClient, served: Served) -> None:
    assert (await task_of(client, served, input="a")).text == "a"


# ------------------------------------------------------------------------------------------------ the task


async def test_what_is_not_given_is_the_models(client: httpx.AsyncClient, served: Served) -> None:
    assert await task_of(client, served, word_timestamps=False) == SpeechTask(text="x", streamed=True)
    assert served.orchestrator.submitted[-1][0] == "speech"


async def test_every_field_reaches_the_task(client: httpx.AsyncClient, served: Served) -> None:
    task = await task_of(
        client,
        served,
        model="smol",
        voice="stone",
        response_format="pcm",
        sample_rate=16_000,
        speed=1.5,
        instructions="whisper",
        language="en",
        seed=7,
        max_new_tokens=99,
        extra_params={"temperature": 0.5},
        user="u",
    )
    assert task == SpeechTask(
        text="x",
        voice="stone",
        format="pcm",
        sample_rate=16_000,
        speed=1.5,
        instructions="whisper",
        language="en",
        seed=7,
        extra={"temperature": 0.5, "max_new_tokens": 99},
        streamed=True,
    )


@pytest.mark.parametrize("fields", [{"voice": "stone"}, {"voice": {"id": "stone"}}, {"speaker": "stone"}])
async def test_a_voice_by_its_name(client: httpx.AsyncClient, served: Served, fields: dict[str, Any]) -> None:
    assert (await task_of(client, served, **fields)).voice == "stone"


async def test_the_voice_default_is_the_models(client: httpx.AsyncClient, served: Served) -> None:
    assert (await task_of(client, served, voice="default")).voice == ""


URL = "https://example.org/a.wav"


@pytest.mark.parametrize(
    ("fields", "sample"),
    [
        ({"ref_audio": URL}, VoiceSample(url=URL)),
        ({"ref_audio": [URL], "ref_text": "hi"}, VoiceSample(url=URL, text="hi")),
        ({"ref_audio": URL, "x_vector_only_mode": True}, VoiceSample(url=URL)),
        (
            {"references": [{"audio_path": URL, "text": "hi"}]},
            VoiceSample(url=URL, text="hi", param="references"),
        ),
        ({"speaker_embedding": [1, 0.5]}, VoiceSample(embedding=[1.0, 0.5], param="speaker_embedding")),
        ({"speaker_embedding": [[1, 0.5]]}, VoiceSample(embedding=[1.0, 0.5], param="speaker_embedding")),
    ],
)
async def test_a_voice_that_the_request_brings_along(
    client: httpx.AsyncClient, served: Served, fields: dict[str, Any], sample: VoiceSample
) -> None:
    assert (await task_of(client, served, **fields)).sample == sample


async def test_a_voice_with_its_own_sample_may_have_any_name(client: httpx.AsyncClient, served: Served) -> None:
    task = await task_of(client, served, voice="somebody", ref_audio=URL)
    assert (task.voice, task.sample) == ("somebody", VoiceSample(url=URL))


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": ""}),
        ("input", {"input": " \n"}),
        ("input", {"input": "x" * 4097}),
        ("instructions", {"instructions": "x" * 501}),
        ("voice", {"voice": " "}),
        ("voice", {"voice": {"id": ""}}),
        ("voice.name", {"voice": {"name": "x"}}),
        ("speaker", {"voice": "a", "speaker": "a"}),
        ("speed", {"speed": 0.24}),
        ("speed", {"speed": 4.01}),
        ("speed", {"speed": "1.5"}),
        ("response_format", {"response_format": "ogg"}),
        ("stream_format", {"stream_format": "chunks"}),
        ("stream_format", {"stream_format": "sse", "stream": False}),
        ("sample_rate", {"sample_rate": 1}),
        ("ref_audio", {"ref_audio": ""}),
        ("ref_audio", {"ref_audio": []}),
        ("ref_audio", {"ref_audio": ["a", "b"]}),
        ("ref_text", {"ref_text": "hi"}),
        ("ref_text", {"ref_text": "hi", "speaker_embedding": [1]}),
        ("references", {"references": []}),
        ("references", {"references": [{"audio_path": "a"}] * 2}),
        ("references", {"references": [{"audio_path": "a"}], "ref_audio": "b"}),
        ("speaker_embedding", {"speaker_embedding": [1], "ref_audio": "b"}),
        ("speaker_embedding", {"speaker_embedding": []}),
        ("speaker_embedding", {"speaker_embedding": [[]]}),
        ("speaker_embedding[0]", {"speaker_embedding": ["1"]}),
        ("speaker_embedding[0]", {"speaker_embedding": [[1], [2]]}),
        ("speaker_embedding[1]", {"speaker_embedding": [1, 10**300]}),
        ("speaker_embedding", {"speaker_embedding": [0.5] * 8193}),
        ("x_vector_only_mode", {"x_vector_only_mode": True}),
        ("x_vector_only_mode", {"x_vector_only_mode": True, "ref_audio": "a", "ref_text": "b"}),
        ("max_new_tokens", {"max_new_tokens": 0}),
        ("max_new_tokens", {"max_new_tokens": 5, "extra_params": {"max_new_tokens": 5}}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**63}),
        ("extra_params", {"extra_params": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}}}),
        ("extra_params.a", {"extra_params": {"a": 2**64}}),
        ("language", {"language": ""}),
        ("word_timestamps", {"word_timestamps": True}),
        ("task_type", {"task_type": "Base"}),
        ("voise", {"voise": "a"}),
    ],
)
async def test_refused(client: httpx.AsyncClient, served: Served, param: str, fields: dict[str, Any]) -> None:
    assert error(await client.post(PATH, json={"input": "x", **fields}))[0] == param
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize(("field", "hint"), [("voise", "voice"), ("task_type", "ref_audio"), ("text", "input")])
async def test_what_to_do_instead_is_said(client: httpx.AsyncClient, field: str, hint: str) -> None:
    answer = await client.post(PATH, json={"input": "x", field: "y"})
    assert hint in answer.json()["error"]["message"]


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json={"input": "x", "model": "tts-1"})
    assert error(answer, 404) == ("model", "model_not_found")


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream_format": "sse"}])
async def test_a_refusal_of_the_replica_is_the_answer(
    client: httpx.AsyncClient, served: Served, fields: dict[str, Any]
) -> None:
    async def refuse() -> None:
        raise ApiError(400, "it has no such voice", param="voice")

    served.orchestrator.before = refuse
    assert error(await client.post(PATH, json={"input": "x", **fields}))[0] == "voice"


async def test_a_server_that_stops_begins_nothing(client: httpx.AsyncClient, served: Served) -> None:
    served.stopping.set()
    assert error(await client.post(PATH, json={"input": "x"}), 503)[1] == "shutting_down"
    assert served.orchestrator.script is SPEECH
    assert served.orchestrator.submitted == []
