"""Answers of the routes that listen: a transcript as text or subtitles, or the events of a stream, as OpenAI's are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from app.cluster.messages import AnyEvent, Delta, Done, Usage

MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip; charset=utf-8", "vtt": "text/vtt"}
"""Of the formats that are no JSON. Litestar adds the charset to those of text."""


class _Segment(msgspec.Struct):
    """A part of a transcript, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


class _Transcript(msgspec.Struct):
    text: str
    segments: list[_Segment] = []


_decode = msgspec.json.Decoder(_Transcript).decode


def written(answer: bytes, response_format: str) -> str:
    """The JSON of a replica's answer as one of MEDIA_TYPES; it has segments where subtitles are made of it."""
    transcript = _decode(answer)
    match response_format:
        case "srt":
            return "".join(
                f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{segment.text.strip()}\n\n"
                for number, segment in enumerate(transcript.segments, 1)
            )
        case "vtt":
            cues = (
                f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{segment.text.strip()}\n\n"
                for segment in transcript.segments
            )
            return "WEBVTT\n\n" + "".join(cues)
        case _:
            return transcript.text + "\n"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


class TranscriptEvents:
    """Writes one stream: `transcript.text.delta` for every piece of text, `transcript.text.done` with all of it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._usage = Usage(0, 0)

    def write(self, events: Iterable[AnyEvent]) -> bytes:
        """The frames of a batch of events."""
        frames = []
        for event in events:
            match event:
                case Delta(_, text):
                    if text:
                        self._text.append(text)
                        frames.append(_frame({"type": "transcript.text.delta", "delta": text}))
                case Usage():
                    self._usage = event
                case Done():
                    text = "".join(self._text)
                    done = {"type": "transcript.text.done", "text": text, "usage": usage_object(self._usage)}
                    frames.append(_frame(done))
        return b"".join(frames)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of a transcript."""
    details = msgspec.json.decode(usage.details) if usage.details else {}
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        **details,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _frame(event: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
