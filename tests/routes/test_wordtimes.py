"""The times of words on POST /v1/audio/speech, over a scripted model: how they are asked for, and how they are told."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.cluster.messages import AnyEvent, Audio, Done, Extra, Usage
from app.protocol.aligning import Alignment, AlignTask, Word
from app.protocol.speechtask import decode_task
from tests.routes.serving import ScriptedOrchestrator, ScriptedStream, Served, Step

PATH = "/v1/audio/speech"
WORDS = [Word("Grüße", 0.08, 0.4), Word("𠀀", 0.4, 0.72)]


class Aligning(ScriptedOrchestrator):
    """One with a forced aligner, which is asked when the scripted sound is there."""

    def __init__(self, script: list[Step]) -> None:
        super().__init__(script)
        self.aligns = True
        self.alignments: list[AlignTask] = []

    async def align(
        self,
        kind: str,
        request_id: str,
        body: bytes,
        task_of: Callable[[list[AnyEvent]], AlignTask],
        *,
        model: str = "",
        limit_s: float = 0.0,
    ) -> ScriptedStream:
        events = [event for step in self.script if isinstance(step, list) for event in step]
        self.alignments = [task_of(events)]
        return await self.submit(kind, request_id, body, model=model, limit_s=limit_s)


def audio(data: bytes) -> Audio:
    return Audio(0, memoryview(data), "mp3", 24_000, 4800, "")


def sounding(data: bytes, words: list[Word] = WORDS) -> list[Step]:
    return [[audio(data)], [Usage(3, 8), Extra(msgspec.json.encode(Alignment(words))), Done()]]


@pytest.fixture
def served() -> Served:
    return Served(Aligning(sounding(b"sound")), Path("/nowhere"))


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


async def ask(client: httpx.AsyncClient, accept: str = "*/*", **fields: Any) -> httpx.Response:
    body = {"input": "Grüße, 𠀀!", "word_timestamps": True, **fields}
    return await client.post(PATH, json=body, headers={"Accept": accept})


def aligner_of(served: Served) -> Aligning:
    assert isinstance(served.orchestrator, Aligning)
    return served.orchestrator


async def test_they_come_in_a_header_of_the_whole_file(client: httpx.AsyncClient, served: Served) -> None:
    answer = await ask(client, language="de")
    assert (answer.content, answer.headers["content-type"]) == (b"sound", "audio/mpeg")
    assert answer.headers["content-length"] == "5"
    assert json.loads(answer.headers["x-word-timestamps"]) == msgspec.to_builtins(WORDS)
    assert "x-word-timestamps-omitted" not in answer.headers
    task = decode_task(served.orchestrator.submitted[-1][2])
    assert (task.streamed, task.base64) == (False, False)
    (aligned,) = aligner_of(served).alignments
    assert aligned == AlignTask(text="Grüße, 𠀀!", file=b"sound", language="de", sound_field="word_timestamps")


async def test_bare_samples_are_told_their_rate(client: httpx.AsyncClient, served: Served) -> None:
    await ask(client, response_format="pcm")
    assert aligner_of(served).alignments[0].sample_rate == 24_000


async def test_with_the_sound_in_json_where_that_is_accepted(client: httpx.AsyncClient, served: Served) -> None:
    sound = base64.b64encode(b"sound")
    served.orchestrator.script = sounding(sound)
    answer = await ask(client, "application/json", response_format="wav")
    told = answer.json()
    assert told["words"] == msgspec.to_builtins(WORDS)
    assert (told["audio"], told["format"], told["sample_rate"]) == (sound.decode(), "wav", 24_000)
    assert told["usage"]["total_tokens"] == 11
    assert aligner_of(served).alignments[0].base64


async def test_too_many_for_a_header_are_left_out_and_that_is_told(client: httpx.AsyncClient, served: Served) -> None:
    served.orchestrator.script = sounding(b"sound", WORDS * 50)
    answer = await ask(client)
    assert "x-word-timestamps" not in answer.headers
    assert "Accept: application/json" in answer.headers["x-word-timestamps-omitted"]


@pytest.mark.parametrize("how", [{"stream": True}, {"stream_format": "audio"}, {"stream_format": "sse"}])
async def test_not_in_streams(client: httpx.AsyncClient, how: dict[str, Any]) -> None:
    answer = await ask(client, **how)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "word_timestamps"


async def test_who_does_not_ask_gets_none(client: httpx.AsyncClient, served: Served) -> None:
    answer = await ask(client, "application/json", word_timestamps=False, stream=False)
    assert answer.content == b"sound"
    assert "x-word-timestamps" not in answer.headers
    assert aligner_of(served).alignments == []


async def test_without_an_aligner_the_flag_is_named(client: httpx.AsyncClient, served: Served) -> None:
    aligner_of(served).aligns = False
    error = (await ask(client)).json()["error"]
    assert (error["param"], error["code"]) == ("word_timestamps", "unsupported_parameter")
    assert "--forced-aligner" in error["message"]
    assert served.orchestrator.submitted == []
