"""What is said over HTTP, and what a recogniser understands of it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import httpx
import openai

from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.hearing import SENTENCES, transcribe, word_error_rate
from tests.servers import Server
from tests.sounds import Samples, decode

VOICE_RATE = 24_000
"""Of the demo's voice, in Hz."""
UNDERSTOOD = 0.1
"""The word error rate that is good enough."""
WAYS = [(format, streamed) for format in CONTENT_TYPES for streamed in (False, True)]
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in two sentences.",
    "Name five animals.",
)
"""What the demo has answers for that a person could read aloud."""
_LIMIT_S = 60.0
_AT_ONCE = 8
"""Sentences that fit into what the recogniser hears at once, half a minute."""


def speak(server: Server, text: str, format: SpeechFormat, *, streamed: bool, **fields: Any) -> bytes:
    """The sound file of a text: in pieces as they are made, or whole. The voice's seed is always the same."""
    how: dict[str, Any] = {"stream_format": "audio"} if streamed else {"stream": False}
    body = {"input": text, "response_format": format, "seed": 1} | how | fields
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=_LIMIT_S)
    assert answer.status_code == 200, answer.text
    assert ("content-length" in answer.headers) is not streamed
    return answer.content


def played(file: bytes, format: SpeechFormat) -> Samples:
    """What is heard of a file, float32 (n,) at the voice's rate; Opus is played at twice that."""
    sound, rate = decode(file, format)
    return sound[:: rate // VOICE_RATE] if rate else sound


def error_rate(sentences: Sequence[str], file: bytes, format: SpeechFormat) -> float:
    """The word error rate of a recogniser that listens to the sentences in the file."""
    heard = transcribe(played(file, format), VOICE_RATE) if format == "pcm" else transcribe(file)
    return word_error_rate(" ".join(sentences), heard)


def every_way(server: Server, seed: int) -> dict[str, float]:
    """The word error rate of all sentences, by format and delivery."""
    groups = [SENTENCES[begin : begin + _AT_ONCE] for begin in range(0, len(SENTENCES), _AT_ONCE)]
    return {
        f"{format}, {'streamed' if streamed else 'whole'}": sum(
            error_rate(group, speak(server, " ".join(group), format, streamed=streamed, seed=seed), format)
            for group in groups
        )
        / len(groups)
        for format, streamed in WAYS
    }


def chats(server: Server) -> dict[str, float]:
    """The word error rate of spoken answers against their transcripts, by question."""
    return {question: answer_error_rate(server, question) for question in QUESTIONS}


def answer_error_rate(server: Server, question: str) -> float:
    """The word error rate of one spoken answer against its transcript."""
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=_LIMIT_S) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            modalities=["text", "audio"],
            audio={"voice": "heart", "format": "mp3"},
            temperature=0,
            max_completion_tokens=60,
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    return word_error_rate(audio.transcript, transcribe(b64decode(audio.data)))
