"""What is said over HTTP, and what a recogniser understands of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.hearing import RATE, transcribe, word_error_rate
from tests.servers import Server
from tests.sounds import Samples, decode

VOICE_RATE = 24_000
"""Of the demo's voice, in Hz."""
UNDERSTOOD = 0.1
"""The word error rate that is good enough."""
WAYS = [(format, streamed) for format in CONTENT_TYPES for streamed in (False, True)]
_LIMIT_S = 60.0


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
    heard = transcribe(played(file, format), VOICE_RATE) if format == "pcm" else transcribe(file, RATE)
    return word_error_rate(" ".join(sentences), heard)
