"""Answers of the routes that speak: one file, the pieces of one, or server-sent events. Base64 is the replica's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from app.cluster.messages import AnyEvent, Audio, Done, Extra, Usage
from app.protocol.aligning import Word, decode_alignment
from app.protocol.errors import ApiError, ErrorBody
from app.protocol.sse import named_error_frame, named_frame

RATE_HEADER = "X-Sample-Rate"
"""Of the sound in a response, in Hz: bare samples do not tell."""
USAGE_HEADER = "X-Usage"
"""Of a response that is a whole file: the usage object that a stream of events ends with."""
_DELTA = "speech.audio.delta"
_DONE = "speech.audio.done"
_ERROR = "speech.audio.error"


class Sound:
    """The sound of one request, what it used, and the times of its words, collected from its events."""

    def __init__(self) -> None:
        self.sample_rate = 0
        self.usage = Usage(0, 0)
        self.words: list[Word] = []

    def add(self, events: Iterable[AnyEvent]) -> bytes:
        """Take a batch of events; returns what it adds to the file."""
        pieces = []
        for event in events:
            if isinstance(event, Audio):
                self.sample_rate = event.sample_rate
                pieces.append(event.data)
            elif isinstance(event, Usage):
                self.usage = event
            elif isinstance(event, Extra):
                self.words = decode_alignment(event.fields).words
        return b"".join(pieces)


class SpeechEvents:
    """Writes one stream of events."""

    def __init__(self) -> None:
        self._usage = Usage(0, 0)

    def write(self, events: Iterable[AnyEvent]) -> bytes:
        """The frames of a batch of events."""
        frames = []
        for event in events:
            match event:
                case Audio() if event.data:
                    rate = b'","sample_rate":%d}' % event.sample_rate
                    frames.append(named_frame(_DELTA, b'{"type":"%b","audio":"' % _DELTA.encode(), event.data, rate))
                case Usage():
                    self._usage = event
                case Done():
                    told = {"type": _DONE, "usage": usage_object(self._usage)}
                    frames.append(named_frame(_DONE, msgspec.json.encode(told)))
        return b"".join(frames)


def silent() -> ApiError:
    """500: the model ended without a sound."""
    return ApiError(500, "The model made no sound of this.", code="no_sound")


def failed_events(body: ErrorBody) -> bytes:
    """How such a stream ends that cannot go on: vllm-omni's event, and the one that OpenAI's clients raise."""
    error = msgspec.json.encode(body.error)
    told = named_frame(_ERROR, b'{"type":"%b","error":' % _ERROR.encode(), error, b"}")
    return told + named_error_frame(body)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of speech; where the engine does not tell, the input is text."""
    told = msgspec.json.decode(usage.details) if usage.details else {}
    taken, made = usage.prompt_tokens, usage.completion_tokens
    return {
        "input_tokens": taken,
        "output_tokens": made,
        "total_tokens": taken + made,
        "input_token_details": told.get("prompt_tokens_details", {"text_tokens": taken, "audio_tokens": 0}),
    }
