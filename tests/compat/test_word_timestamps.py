"""The demo's voice with a forced aligner behind it, as clients see it. The aligner is tiny: its times mean nothing."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import openai
import pytest

from app.protocol.speechtask import SpeechFormat
from tests.servers import Server
from tests.sounds import decode

TEXT = "The old lighthouse keeper, who was **never** late."
WORDS = ["The", "old", "lighthouse", "keeper", "who", "was", "never", "late"]


@pytest.mark.parametrize("format", ["mp3", "wav", "pcm"])
def test_words_are_told_with_the_file(voice: Server, format: SpeechFormat) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{voice.url}/v1", max_retries=0, timeout=60) as client:
        answer = client.audio.speech.with_raw_response.create(
            model="demo",
            voice="heart",
            input=TEXT,
            response_format=format,
            extra_body={"word_timestamps": True},
        )
    words = json.loads(answer.headers["x-word-timestamps"])
    assert [word["word"] for word in words] == WORDS
    sound, _ = decode(answer.content, format)
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[-1] <= len(sound) / int(answer.headers["x-sample-rate"]) + 0.15


async def test_many_at_once_and_in_json(voice: Server) -> None:
    texts = [TEXT, "one two", "Good morning!", "..."]

    async def ask(client: httpx.AsyncClient, text: str) -> dict[str, object]:
        body = {"input": text, "word_timestamps": True, "response_format": "wav"}
        answer = await client.post("/v1/audio/speech", json=body, headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        told: dict[str, object] = answer.json()
        return told

    async with httpx.AsyncClient(base_url=voice.url, timeout=60) as client:
        answers = await asyncio.gather(*(ask(client, text) for text in texts[:3]))
    assert [len(answer["words"]) for answer in answers] == [8, 2, 2]  # type: ignore[arg-type]
    for answer in answers:
        assert base64.b64decode(str(answer["audio"])).startswith(b"RIFF")


def test_a_language_that_the_aligner_does_not_know(voice: Server) -> None:
    body = {"input": TEXT, "word_timestamps": True, "language": "sv"}
    answer = httpx.post(f"{voice.url}/v1/audio/speech", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "language"
