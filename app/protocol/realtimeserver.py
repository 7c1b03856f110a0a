"""/v1/realtime: the events that the server sends, in OpenAI's dialect."""

from __future__ import annotations

import itertools
import os
from typing import Any

import msgspec

from app.protocol.errors import ApiError
from app.protocol.realtimeitems import Item
from app.protocol.realtimeresponse import Response
from app.protocol.realtimesession import Session


def new_id(kind: str) -> str:
    """An id such as item_0123456789abcdef01234567."""
    return f"{kind}_{os.urandom(12).hex()}"


class _Server(msgspec.Struct, kw_only=True, tag_field="type"):
    event_id: str = ""


class SessionCreated(_Server, kw_only=True, tag="session.created"):
    """The first event."""

    session: Session


class SessionUpdated(_Server, kw_only=True, tag="session.updated"):
    """All that holds after a change."""

    session: Session


class _ItemEvent(_Server, kw_only=True):
    item: Item
    previous_item_id: str | None = None


class ItemAdded(_ItemEvent, kw_only=True, tag="conversation.item.added"):
    """There is an item more."""


class ItemDone(_ItemEvent, kw_only=True, tag="conversation.item.done"):
    """And it is complete, or will not be."""


class ItemRetrieved(_Server, kw_only=True, tag="conversation.item.retrieved"):
    """An item with its sound."""

    item: Item


class ItemDeleted(_Server, kw_only=True, tag="conversation.item.deleted"):
    """The client has deleted an item, or it has had to make room for later ones."""

    item_id: str


class ItemTruncated(_Server, kw_only=True, tag="conversation.item.truncated"):
    """What has not been heard is forgotten."""

    item_id: str
    content_index: int
    audio_end_ms: int


class BufferCommitted(_Server, kw_only=True, tag="input_audio_buffer.committed"):
    """The sound is an item of the conversation now."""

    item_id: str
    previous_item_id: str | None


class BufferCleared(_Server, kw_only=True, tag="input_audio_buffer.cleared"):
    """The sound is forgotten."""


class SpeechStartedEvent(_Server, kw_only=True, tag="input_audio_buffer.speech_started"):
    """Somebody speaks; it will be that item."""

    audio_start_ms: int
    item_id: str


class SpeechStoppedEvent(_Server, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """Nobody speaks any more."""

    audio_end_ms: int
    item_id: str


class TranscriptionDelta(_Server, kw_only=True, tag="conversation.item.input_audio_transcription.delta"):
    """The next words of what a user has said."""

    item_id: str
    content_index: int
    delta: str


class TranscriptionCompleted(_Server, kw_only=True, tag="conversation.item.input_audio_transcription.completed"):
    """All that a user has said in an item."""

    item_id: str
    content_index: int
    transcript: str
    usage: dict[str, Any]


class TranscriptionFailed(_Server, kw_only=True, tag="conversation.item.input_audio_transcription.failed"):
    """Nobody could write down what was said."""

    item_id: str
    content_index: int
    error: dict[str, Any]


class _ResponseEvent(_Server, kw_only=True):
    response: Response


class ResponseCreated(_ResponseEvent, kw_only=True, tag="response.created"):
    """A replica has accepted it."""


class ResponseDone(_ResponseEvent, kw_only=True, tag="response.done"):
    """Nothing more comes of it, whatever has happened."""


class _OutputItem(_Server, kw_only=True):
    response_id: str
    output_index: int
    item: Item


class OutputItemAdded(_OutputItem, kw_only=True, tag="response.output_item.added"):
    """The response begins an item."""


class OutputItemDone(_OutputItem, kw_only=True, tag="response.output_item.done"):
    """The item is complete, or will not be."""


class Place(msgspec.Struct, frozen=True):
    """Where in a response something belongs: its item, and the one content that an item has."""

    response_id: str
    item_id: str
    output_index: int


class _Part(_Server, kw_only=True):
    response_id: str
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(_Part, kw_only=True, tag="response.content_part.added"):
    """An item begins to say something."""

    part: dict[str, str]


class ContentPartDone(_Part, kw_only=True, tag="response.content_part.done"):
    """It has said all of it."""

    part: dict[str, str]


class TextDelta(_Part, kw_only=True, tag="response.output_text.delta"):
    """The next words."""

    delta: str


class TextDone(_Part, kw_only=True, tag="response.output_text.done"):
    """All words."""

    text: str


class TranscriptDelta(_Part, kw_only=True, tag="response.output_audio_transcript.delta"):
    """The next words of what is heard."""

    delta: str


class TranscriptDone(_Part, kw_only=True, tag="response.output_audio_transcript.done"):
    """All words of what is heard."""

    transcript: str


class AudioDelta(_Part, kw_only=True, tag="response.output_audio.delta"):
    """The next sound, in base64: whole samples."""

    delta: str


class AudioDone(_Part, kw_only=True, tag="response.output_audio.done"):
    """No more sound."""


class _Call(_Server, kw_only=True):
    response_id: str
    item_id: str
    output_index: int
    call_id: str


class ArgumentsDelta(_Call, kw_only=True, tag="response.function_call_arguments.delta"):
    """The next piece of the arguments' JSON."""

    delta: str


class ArgumentsDone(_Call, kw_only=True, tag="response.function_call_arguments.done"):
    """All of it."""

    name: str
    arguments: str


class RealtimeError(msgspec.Struct, kw_only=True):
    """What went wrong; `event_id` is that of the client's event, where it had one."""

    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None


class ErrorEvent(_Server, kw_only=True, tag="error"):
    """Every error that is not the end of a response."""

    error: RealtimeError


ServerEvent = _Server


def error_event(error: ApiError, event_id: str | None = None) -> ErrorEvent:
    """An error as the client is told of it; `event_id` is the client's."""
    found = error.body.error
    told = RealtimeError(type=found.type, code=found.code, message=found.message, param=found.param, event_id=event_id)
    return ErrorEvent(error=told)


class EventNumbers:
    """Gives the events of one socket their ids, and writes them."""

    def __init__(self) -> None:
        self._prefix = new_id("event")[:14]
        self._numbers = itertools.count(1)

    def encode(self, event: ServerEvent) -> str:
        """The event as a text frame."""
        event.event_id = f"{self._prefix}{next(self._numbers):08x}"
        return msgspec.json.encode(event).decode()
