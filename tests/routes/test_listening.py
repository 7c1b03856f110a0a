"""The routes that listen, over a scripted model: what reaches the replica, and how its answer is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import openai
import pytest

from app.cluster.messages import Delta, Document, Done, Usage
from app.protocol.errors import ApiError
from app.protocol.listening import ListeningTask, decode_task
from tests.routes.serving import Exchange, ScriptedOrchestrator, Served, Step, events

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
FILE = {"file": ("a.wav", b"RIFF....", "audio/wav")}
ANSWER = {
    "text": "Hello. Wörld",
    "language": "en",
    "duration": 3661.5,
    "segments": [
        {"id": 0, "start": 0.0, "end": 1.24, "text": " Hello."},
        {"id": 1, "start": 59.9996, "end": 3661.5, "text": " Wörld"},
    ],
}
WHOLE: list[Step] = [[Document(msgspec.json.encode(ANSWER)), Usage(7, 3), Done()]]
PIECES: list[Step] = [
    [Delta(0, "Hel"), Delta(0, "lo.")],
    [Delta(0, "", 1)],
    [Delta(0, " Wörld"), Usage(104, 3, b'{"input_token_details":{"text_tokens":4,"audio_tokens":100}}'), Done()],
]


def listening(script: list[Step]) -> Served:
    orchestrator = ScriptedOrchestrator(script)
    orchestrator.tasks = ["transcription", "translation"]
    return Served(orchestrator)


def asked(served: Served) -> ListeningTask:
    return decode_task(served.orchestrator.submitted[-1][2])


@pytest.fixture
def served() -> Served:
    return listening(WHOLE)


def error(answer: httpx.Response, status: int = 400) -> tuple[str | None, str | None]:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found["param"], found["code"]


async def test_json_is_the_replicas(client: httpx.AsyncClient, served: Served) -> None:
    fields = {"model": "smol", "language": "en", "temperature": "0.2", "chunking_strategy": "auto"}
    answer = await client.post(TRANSCRIPTIONS, data=fields, files=FILE)
    assert answer.json() == ANSWER
    assert [(kind, model) for kind, _, _, model in served.orchestrator.submitted] == [("transcription", "smol")]
    task = asked(served)
    assert task.fields == {"model": "smol", "language": "en", "temperature": "0.2"}
    assert (task.answer, task.stream, task.file) == ("json", False, b"RIFF....")


async def test_translations_are_another_task(client: httpx.AsyncClient, served: Served) -> None:
    assert (await client.post(TRANSLATIONS, files=FILE)).json() == ANSWER
    assert served.orchestrator.submitted[-1][0] == "translation"


@pytest.mark.parametrize(
    ("response_format", "kind", "text"),
    [
        ("text", "text/plain", "Hello. Wörld\n"),
        (
            "srt",
            "application/x-subrip",
            "1\n00:00:00,000 --> 00:00:01,240\nHello.\n\n2\n00:01:00,000 --> 01:01:01,500\nWörld\n\n",
        ),
        (
            "vtt",
            "text/vtt",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.240\nHello.\n\n00:01:00.000 --> 01:01:01.500\nWörld\n\n",
        ),
    ],
)
async def test_texts_and_subtitles(
    client: httpx.AsyncClient, served: Served, response_format: str, kind: str, text: str
) -> None:
    answer = await client.post(TRANSCRIPTIONS, data={"response_format": response_format}, files=FILE)
    assert (answer.headers["content-type"], answer.text) == (f"{kind}; charset=utf-8", text)
    assert asked(served).answer == ("json" if response_format == "text" else "verbose_json")


@pytest.mark.parametrize("name", ["timestamp_granularities[]", "timestamp_granularities"])
async def test_times_of_segments(client: httpx.AsyncClient, served: Served, name: str) -> None:
    fields = {"response_format": "verbose_json", name: "segment"}
    assert (await client.post(TRANSCRIPTIONS, data=fields, files=FILE)).json() == ANSWER
    assert asked(served).fields == {}


async def test_a_stream_is_openais() -> None:
    served = listening(PIECES)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(TRANSCRIPTIONS, data={"stream": "true"}, files=FILE)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events(answer.content) == [
        {"type": "transcript.text.delta", "delta": "Hel"},
        {"type": "transcript.text.delta", "delta": "lo."},
        {"type": "transcript.text.delta", "delta": " Wörld"},
        {
            "type": "transcript.text.done",
            "text": "Hello. Wörld",
            "usage": {
                "type": "tokens",
                "input_tokens": 104,
                "input_token_details": {"text_tokens": 4, "audio_tokens": 100},
                "output_tokens": 3,
                "total_tokens": 107,
            },
        },
    ]


@pytest.fixture
async def streaming() -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(listening(PIECES).app))
    async with openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0) as client:
        yield client


async def test_openais_client_reads_the_stream(streaming: openai.AsyncOpenAI) -> None:
    stream = await streaming.audio.transcriptions.create(model="smol", file=FILE["file"], stream=True)
    found: list[Any] = [event async for event in stream]
    assert "".join(event.delta for event in found[:-1]) == found[-1].text == "Hello. Wörld"
    assert found[-1].usage.input_token_details.audio_tokens == 100
    for event in found:
        type(event).model_validate(event.model_dump(), strict=True)


async def test_a_stream_that_fails_ends_with_the_error() -> None:
    served = listening([PIECES[0], ApiError(503, "gone", code="replica_lost")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(TRANSCRIPTIONS, data={"stream": "true"}, files=FILE)
    assert events(answer.content)[-1]["error"]["code"] == "replica_lost"


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {}, "file", "missing_required_parameter"),
    ({"file": "data:audio/wav;base64,UklGRg=="}, {"x": ("x.txt", b"x", "audio/wav")}, "file", "invalid_value"),
    ({}, {"file": ("a.wav", b"", "audio/wav")}, "file", "invalid_value"),
    ({}, {"files": ("a.wav", b"RIFF", "audio/wav")}, "files", "invalid_value"),
    ({"response_format": "mp3"}, FILE, "response_format", "invalid_value"),
    ({"stream": "perhaps"}, FILE, "stream", "invalid_value"),
    ({"stream": "true", "response_format": "verbose_json"}, FILE, "response_format", "invalid_value"),
    ({"include[]": "logprobs"}, FILE, "include", "unsupported_parameter"),
    ({"chunking_strategy": '{"type":"server_vad"}'}, FILE, "chunking_strategy", "unsupported_parameter"),
    ({"known_speaker_names[]": "a"}, FILE, "known_speaker_names", "unsupported_parameter"),
    ({"timestamp_granularities[]": "segment"}, FILE, "timestamp_granularities", "invalid_value"),
    (
        {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
        FILE,
        "timestamp_granularities",
        "unsupported_parameter",
    ),
    (
        {"timestamp_granularities[]": "page", "response_format": "srt"},
        FILE,
        "timestamp_granularities",
        "invalid_value",
    ),
    ({"language": ["en", "de"]}, FILE, "language", "invalid_value"),
]


@pytest.mark.parametrize(("data", "files", "param", "code"), REFUSED)
async def test_what_the_worker_refuses(
    client: httpx.AsyncClient, served: Served, data: dict[str, Any], files: dict[str, Any], param: str, code: str
) -> None:
    form = files or {"model": (None, "smol")}  # else httpx sends no form
    assert error(await client.post(TRANSCRIPTIONS, data=data, files=form)) == (param, code)
    assert served.orchestrator.submitted == []


async def test_two_recordings_are_one_too_many(client: httpx.AsyncClient) -> None:
    answer = await client.post(TRANSCRIPTIONS, files=[("file", FILE["file"]), ("file", FILE["file"])])
    assert error(answer) == ("file", "invalid_value")


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    assert error(await client.post(TRANSCRIPTIONS, data={"model": "nope"}, files=FILE), 404)[0] == "model"


async def test_only_forms_are_read(client: httpx.AsyncClient) -> None:
    assert error(await client.post(TRANSCRIPTIONS, json={"file": "x"}), 415) == (None, "unsupported_media_type")


async def test_too_large_recordings_are_refused_while_they_come(served: Served, client: httpx.AsyncClient) -> None:
    served.settings.media.max_bytes = 1000
    answer = await client.post(TRANSCRIPTIONS, files={"file": ("a.wav", b"x" * 1001, "audio/wav")})
    assert error(answer, 413) == ("file", "form_too_large")


async def test_whoever_leaves_ends_the_work() -> None:
    served = listening([asyncio.Event()])
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\r\n--b--\r\n'
    running = Exchange(served, TRANSCRIPTIONS, body, {"content-type": "multipart/form-data; boundary=b"})
    async with asyncio.timeout(5):
        await served.orchestrator.accepted.wait()
        running.leave()
        await served.orchestrator.streams[0].closed.wait()
        await running.task


async def test_the_document_describes_the_form(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path, own in ((TRANSCRIPTIONS, "timestamp_granularities[]"), (TRANSLATIONS, "to_language")):
        schema = paths[path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert schema["required"] == ["file"]
        assert {"file", "model", "language", "response_format", "stream", own} <= set(schema["properties"])
