"""/v1/audio/transcriptions and /v1/audio/translations: what the API worker acts on, and what a replica is asked.

The rest of the fields are vLLM's business: they go to the replica as the text that they were in the form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from app.protocol.decoding import invalid_field
from app.protocol.errors import ApiError, invalid, unsupported

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]

LISTS = ("timestamp_granularities", "include", "known_speaker_names", "known_speaker_references")
"""Fields that may be in a form several times, with or without [] after their name."""

_NO_SPEAKERS = "the models here are not told how speakers sound"
_REFUSED = {
    "include": "there are no probabilities of the tokens of a transcript here",
    "known_speaker_names": _NO_SPEAKERS,
    "known_speaker_references": _NO_SPEAKERS,
}
_TIMED: tuple[TranscriptFormat, ...] = ("srt", "vtt", "verbose_json")
"""Formats that tell when something was said: made of the segments of a verbose answer."""


class Asked(msgspec.Struct, frozen=True):
    """The fields that the API worker acts on."""

    model: str | None = None
    stream: bool = False
    response_format: str = "json"


class ListeningTask(msgspec.Struct, kw_only=True):
    """The body of a Submit of the kinds "transcription" and "translation", in msgpack.

    `fields` are those of vLLM's request classes, as texts, but `response_format`: `answer` says which form of JSON is
    wanted. `file` is the recording as it was uploaded.
    """

    fields: dict[str, str]
    answer: Literal["json", "verbose_json", "diarized_json"]
    stream: bool
    file: bytes


def judged(fields: Mapping[str, str], lists: Mapping[str, Sequence[str]]) -> Asked:
    """What the worker has to know of a form; `lists` are the fields of LISTS that it has, by their names without [].

    Raises:
        ApiError: 400, a value that cannot be, or that cannot have its effect here.
    """
    try:
        known = {name: fields[name] for name in Asked.__struct_fields__ if name in fields}
        asked = msgspec.convert(known, Asked, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from None
    if asked.response_format not in (formats := get_args(TranscriptFormat)):
        raise invalid("response_format", f"must be one of {', '.join(formats)}")
    if asked.stream and asked.response_format != "json":
        raise invalid("response_format", "a stream is made of events, so it can only be json")
    for name, reason in _REFUSED.items():
        if name in lists:
            raise unsupported(name, reason)
    if fields.get("chunking_strategy", "auto") != "auto":
        raise unsupported(
            "chunking_strategy", "long recordings are cut where they are quiet; send auto, or leave it out"
        )
    _check_granularities(lists.get("timestamp_granularities", ()), asked)
    return asked


def _check_granularities(wanted: Sequence[str], asked: Asked) -> None:
    name = "timestamp_granularities"
    for granularity in wanted:
        if granularity not in ("word", "segment"):
            raise invalid(name, "must be segment")
        if granularity == "word":
            raise unsupported(name, "the models here tell the times of segments, not of words; send segment")
    if wanted and asked.response_format not in _TIMED:
        raise invalid(name, "there are times in verbose_json, srt and vtt only: choose a response_format of these")


def listening_task(asked: Asked, fields: Mapping[str, str], file: bytes) -> bytes:
    """The body of a Submit.

    Raises:
        ApiError: 400, the recording is empty.
    """
    if not file:
        raise invalid("file", "is empty")
    ours = ("stream", "response_format", "chunking_strategy")
    task = ListeningTask(
        fields={name: value for name, value in fields.items() if name not in ours},
        answer="verbose_json" if asked.response_format in _TIMED else _plain(asked.response_format),
        stream=asked.stream,
        file=file,
    )
    return _encoder.encode(task)


def _plain(response_format: str) -> Literal["json", "diarized_json"]:
    return "diarized_json" if response_format == "diarized_json" else "json"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ListeningTask)


def decode_task(body: bytes) -> ListeningTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)


def no_recording() -> ApiError:
    """400: a form without the file."""
    return ApiError(400, "file is required: the recording.", param="file", code="missing_required_parameter")
