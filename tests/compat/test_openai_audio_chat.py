"""The `openai` package as the judge of chats that are heard: against stub stages, and against the demo."""

from __future__ import annotations

import re
import wave
from base64 import b64decode
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.engines.stubspeech import ramp
from tests.compat.wire import CHAT, JSON
from tests.hearing import transcribe
from tests.servers import ROOT, Server

ASK: list[Any] = [{"role": "user", "content": "one two three four five"}]
FRAME = 4800
"""Samples for two words."""
HEARD: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "pcm16"}}


@pytest.fixture(scope="module")
def client(speaking_chats: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{speaking_chats.url}/v1", max_retries=0, timeout=60) as client:
        yield client


def test_the_model_says_that_it_speaks(client: openai.OpenAI) -> None:
    model: Any = client.models.retrieve("stub")
    assert model.output_modalities == ["text", "audio"]
    assert {"chat", "speech"} <= set(model.tasks)
    assert "heart" in model.card["voices"]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="stub", messages=ASK, **HEARD)
    type(answer).model_validate(answer.model_dump(), strict=True)
    [choice] = answer.choices
    assert choice.message.content == "one two three four five "
    assert choice.message.audio is not None
    assert choice.message.audio.transcript == choice.message.content
    assert b64decode(choice.message.audio.data, validate=True) == ramp(0, 3 * FRAME)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.audio_tokens == 12
    assert answer.usage.completion_tokens == 5 + 12


def test_a_streamed_answer(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="stub", messages=ASK, stream=True, stream_options={"include_usage": True}, **HEARD
    )
    chunks = list(stream)
    deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
    audio = [delta.audio.model_dump(exclude_unset=True) for delta in deltas if delta.audio is not None]
    assert "".join(delta.content or "" for delta in deltas) == "one two three four five "
    assert "".join(part.get("transcript", "") for part in audio) == "one two three four five "
    assert b64decode("".join(part.get("data", "") for part in audio), validate=True) == ramp(0, 3 * FRAME)
    assert [name for part in audio for name in part if name in ("id", "expires_at")] == ["id", "expires_at"]
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert finishes == [None] * (len(finishes) - 1) + ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 17


def pieces(chunks: Iterable[Any]) -> list[str]:
    """The base64 of each piece of a stream's sound."""
    audio = [choice.delta.audio for chunk in chunks for choice in chunk.choices]
    return [part.data for part in audio if part is not None and part.data]


def test_a_wav_file_has_one_header(client: openai.OpenAI) -> None:
    heard = HEARD | {"audio": {"voice": "stone", "format": "wav"}}
    whole = client.chat.completions.create(model="stub", messages=ASK, **heard)
    assert whole.choices[0].message.audio is not None
    with wave.open(BytesIO(b64decode(whole.choices[0].message.audio.data))) as file:
        assert file.readframes(file.getnframes()) == ramp(0, 3 * FRAME)
    chunks: Any = client.chat.completions.create(model="stub", messages=ASK, stream=True, **heard)
    streamed = b"".join(b64decode(data, validate=True) for data in pieces(chunks))
    assert (streamed[:4], streamed.count(b"RIFF"), streamed[44:]) == (b"RIFF", 1, ramp(0, 3 * FRAME))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({"audio": {"voice": "heart", "format": "mp3"}}, "audio.format"),  # the stub writes no mp3
        ({"audio": {"voice": "heart", "format": "ogg"}}, "audio.format"),
        ({"n": 2}, "n"),
        ({"modalities": ["text"]}, "audio"),
        ({"audio": openai.omit}, "audio"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(client: openai.OpenAI, fields: dict[str, Any], param: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "stub", "messages": ASK, "stream": stream, **HEARD, **fields})
    assert caught.value.param == param


# ------------------------------------------------------------------------------------------------ the demo


SENTENCE = "The museum is closed on Monday, but open on all other days."
REPEAT: list[Any] = [{"role": "user", "content": f"Repeat this sentence, word for word: {SENTENCE}"}]


def test_the_demo_says_what_it_writes(demo: Server) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": REPEAT, "temperature": 0, "max_completion_tokens": 40}
    heard = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"}}
    with openai.OpenAI(api_key="none", base_url=f"{demo.url}/v1", max_retries=0, timeout=120) as client:
        complete = client.chat.completions.create
        text = complete(**asked).choices[0].message.content
        message = complete(**asked, **heard).choices[0].message
        chunks = list(complete(**asked, **heard, stream=True))
    assert message.audio is not None
    assert message.content == message.audio.transcript == text
    sound = b64decode(message.audio.data, validate=True)
    streamed = b64decode("".join(pieces(chunks)), validate=True)
    assert streamed[44:] == sound[44:], "streamed and whole are not the same samples"
    assert "museum" in transcribe(sound).lower()


def test_the_examples_of_the_documentation(demo: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "audio_chat.md").read_text()
    commands = re.findall(r"-d '(.*?)'", page, re.DOTALL)
    answers = [httpx.post(demo.url + CHAT, content=body, headers=JSON, timeout=120) for body in commands]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["choices"][0]["message"]["audio"]["transcript"]
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("http://127.0.0.1:8091", demo.url), "audio_chat.md", "exec"), {})
    assert transcribe((tmp_path / "hello.mp3").read_bytes())
