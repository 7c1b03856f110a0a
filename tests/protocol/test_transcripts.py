"""Transcripts as text and subtitles, and the events of a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from app.cluster.messages import Delta, Done, Usage
from app.protocol.transcripts import TranscriptEvents, written


def answer(*segments: tuple[float, float, str]) -> bytes:
    parts = [{"id": 0, "start": start, "end": end, "text": text} for start, end, text in segments]
    return msgspec.json.encode({"text": "".join(part["text"] for part in parts), "segments": parts})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("start", "end", "line"),
    [
        (0.0, 0.0004, "00:00:00,000 --> 00:00:00,000"),
        (0.9996, 59.9996, "00:00:01,000 --> 00:01:00,000"),
        (3599.9999, 360_000.5, "01:00:00,000 --> 100:00:00,500"),
    ],
)
def test_times_are_rounded_and_carried(start: float, end: float, line: str) -> None:
    assert written(answer((start, end, " x")), "srt") == f"1\n{line}\nx\n\n"
    assert written(answer((start, end, " x")), "vtt") == f"WEBVTT\n\n{line.replace(',', '.')}\nx\n\n"


def test_nothing_said() -> None:
    assert written(answer(), "srt") == ""
    assert written(answer(), "vtt") == "WEBVTT\n\n"
    assert written(b'{"text":""}', "text") == "\n"


def decoded(frames: bytes) -> list[Any]:
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames.split(b"\n\n") if frame]


def test_pieces_without_text_are_no_events() -> None:
    writer = TranscriptEvents()
    assert writer.write([Delta(0, "", 1), Usage(1, 1)]) == b""
    events = decoded(writer.write([Delta(0, "a"), Delta(0, "", 0), Usage(7, 2), Done()]))
    assert [event["type"] for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[1]["text"] == "a"
    assert events[1]["usage"] == {"type": "tokens", "input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
