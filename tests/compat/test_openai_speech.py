"""The `openai` package as the judge of our speech routes, against the voice of the demo and against the stub."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from app.protocol.errors import ApiError
from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.routes.speaking import asked, sound, speaking
from tests.servers import Server
from tests.sounds import Samples, decode

TEXT = "The old lighthouse keeper walked slowly down to the beach. It was late."
FORMATS = list(CONTENT_TYPES)
RATE = 24_000


@pytest.fixture(scope="module")
def client(voice: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{voice.url}/v1", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def spoken(client: openai.OpenAI) -> Samples:
    """TEXT as the samples that every format has to hold."""
    content = client.audio.speech.create(model="demo", voice="heart", input=TEXT, response_format="pcm").content
    return decode(content, "pcm")[0]


def ask(client: openai.OpenAI, format: SpeechFormat, **fields: Any) -> Any:
    return client.audio.speech.create(model="demo", voice="heart", input=TEXT, response_format=format, **fields)


def same(content: bytes, format: SpeechFormat, spoken: Samples) -> bool:
    """Sample by sample where the format loses nothing, else as long as it; tests/media judges the codecs."""
    heard, rate = decode(content, format)
    if format in ("flac", "wav", "pcm"):
        return len(heard) == len(spoken) and np.allclose(heard, spoken, atol=1e-4)
    return abs(len(heard) / rate - len(spoken) / RATE) < 0.15


def test_the_model_says_what_it_can(client: openai.OpenAI) -> None:
    model: Any = client.models.retrieve("demo")
    assert model.tasks == ["speech"]
    assert (model.card["default_voice"], model.card["sample_rate"]) == ("heart", 24_000)


@pytest.mark.parametrize("format", FORMATS)
def test_create_and_streaming_give_the_same_file(client: openai.OpenAI, spoken: Samples, format: SpeechFormat) -> None:
    content = ask(client, format).content
    create = client.audio.speech.with_streaming_response.create
    with create(model="demo", voice="heart", input=TEXT, response_format=format) as answer:
        assert answer.headers["content-type"] == CONTENT_TYPES[format]
        assert b"".join(answer.iter_bytes()) == content
    assert same(content, format, spoken)


def test_the_default_is_mp3(client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model="demo", voice="heart", input="Hi.")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert decode(answer.content, "mp3")[1] == 24_000


def test_a_file_can_be_written_as_it_comes(client: openai.OpenAI, tmp_path: Path) -> None:
    with client.audio.speech.with_streaming_response.create(model="demo", voice="heart", input=TEXT) as answer:
        answer.stream_to_file(tmp_path / "speech.mp3")
    assert (tmp_path / "speech.mp3").read_bytes() == ask(client, "mp3").content


def test_events(client: openai.OpenAI, spoken: Samples) -> None:
    create = client.audio.speech.with_streaming_response.create
    with create(model="demo", voice="heart", input=TEXT, response_format="pcm", stream_format="sse") as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * (len(events) - 1) + ["speech.audio.done"]
    assert same(b"".join(base64.b64decode(event["audio"]) for event in events[:-1]), "pcm", spoken)
    usage = events[-1]["usage"]
    assert usage["input_token_details"]["text_tokens"] == usage["input_tokens"] > 0
    assert usage["output_tokens"] == pytest.approx(len(spoken) / RATE / 0.05, abs=2)


def test_a_whole_file_tells_its_usage(client: openai.OpenAI) -> None:
    headers = ask(client, "wav").response.headers
    usage = json.loads(headers["x-usage"])
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert headers["x-sample-rate"] == "24000"


def test_a_voice_object(client: openai.OpenAI, spoken: Samples) -> None:
    answer = client.audio.speech.create(model="demo", voice={"id": "heart"}, input=TEXT, response_format="wav")
    assert same(answer.content, "wav", spoken)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "alloy"}, "voice"),
        ({"instructions": "whisper"}, "instructions"),
        ({"speed": 4.01}, "speed"),
        ({"input": ""}, "input"),
        ({"extra_body": {"language": "xx"}}, "language"),
        ({"extra_body": {"extra_params": {"no_such": 1}}}, "no_such"),
        ({"extra_body": {"ref_audio": "data:audio/wav;base64,AAAA"}}, "ref_audio"),
    ],
)
def test_what_cannot_be_honoured_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.audio.speech.create(**{"model": "demo", "voice": "heart", "input": "x", **fields})
    assert error.value.param == param


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.audio.speech.create(model="tts-1", voice="heart", input="x")
    assert error.value.code == "model_not_found"


def test_a_batch(client: openai.OpenAI, spoken: Samples) -> None:
    body = {"items": [{"input": TEXT}, {"input": "Hi.", "response_format": "mp3"}], "response_format": "wav"}
    answer = client.post("/audio/speech/batch", body=body, cast_to=httpx.Response).json()
    first, second = [base64.b64decode(item["audio_data"]) for item in answer["results"]]
    assert same(first, "wav", spoken)
    assert len(decode(second, "mp3")[0]) > 4800


# ------------------------------------------------------------------------------------------------ failures


def test_a_connection_that_breaks_is_an_error(speaking_stub: Server) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{speaking_stub.url}/v1", max_retries=0) as client:
        script = {"extra_params": {"stub": {"tokens": 9, "token_s": 0.05, "fail_after": 3}}}
        fields: dict[str, Any] = {"model": "stub", "voice": "heart", "input": "x", "response_format": "pcm"}
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            client.audio.speech.create(**fields, extra_body=script)
        script["extra_params"]["stub"]["fail_after"] = 0
        with pytest.raises(openai.InternalServerError):
            client.audio.speech.create(**fields, extra_body=script)


@pytest.fixture
async def failing() -> AsyncIterator[openai.AsyncOpenAI]:
    served = speaking([[sound(b"one", base64_=True)], ApiError(503, "the replica was lost", code="replica_lost")])
    http = httpx.AsyncClient(transport=httpx.ASGITransport(served.app))
    async with openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0) as client:
        yield client
    assert asked(served).base64


async def test_an_error_event_is_raised(failing: openai.AsyncOpenAI) -> None:
    body = {"model": "smol", "input": "x", "stream_format": "sse"}
    stream_class = openai.AsyncStream[Any]
    stream = await failing.post("/audio/speech", body=body, cast_to=object, stream=True, stream_cls=stream_class)
    assert (await anext(stream))["type"] == "speech.audio.delta"
    with pytest.raises(openai.APIError, match="the replica was lost"):
        await anext(stream)
