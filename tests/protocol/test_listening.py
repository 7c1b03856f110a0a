"""What becomes of a form with a recording."""

from __future__ import annotations

import msgspec
import pytest

from app.protocol.errors import ApiError
from app.protocol.listening import Asked, decode_task, judged, listening_task


@pytest.mark.parametrize(
    ("response_format", "answer"),
    [
        ("json", "json"),
        ("text", "json"),
        ("srt", "verbose_json"),
        ("vtt", "verbose_json"),
        ("verbose_json", "verbose_json"),
        ("diarized_json", "diarized_json"),
    ],
)
def test_the_form_of_the_answer(response_format: str, answer: str) -> None:
    fields = {"response_format": response_format, "seed": "1", "stream": "false"}
    task = decode_task(listening_task(judged(fields, {}), fields, b"\x00\xff"))
    assert (task.answer, task.fields, task.stream, task.file) == (answer, {"seed": "1"}, False, b"\x00\xff")


@pytest.mark.parametrize(("text", "stream"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_truth_in_forms(text: str, stream: bool) -> None:
    assert judged({"stream": text}, {}) == Asked(stream=stream)


def test_a_body_that_is_no_task() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_task(b"\x81\xa4file\xc4\x01x")


def test_an_empty_recording() -> None:
    with pytest.raises(ApiError, match="file: is empty"):
        listening_task(Asked(), {}, b"")
