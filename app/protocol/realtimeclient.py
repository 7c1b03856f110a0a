"""/v1/realtime: the events that clients send, in OpenAI's dialect."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.realtimeitems import Item, ItemId
from app.settings.problems import did_you_mean

MAX_EVENT = 4 << 20
"""Characters of one event: a minute of sound, or a picture."""

_EventId = Annotated[str, msgspec.Meta(max_length=512)] | None


class _Client(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: _EventId = None


class SessionUpdate(_Client, kw_only=True, forbid_unknown_fields=True, tag="session.update"):
    """Change the session: see app.protocol.realtimesession."""

    session: dict[str, Any]


class AudioAppend(_Client, kw_only=True, forbid_unknown_fields=True, tag="input_audio_buffer.append"):
    """More sound of the user's, in base64."""

    audio: str


class AudioCommit(_Client, forbid_unknown_fields=True, tag="input_audio_buffer.commit"):
    """The sound so far is what the user has said."""


class AudioClear(_Client, forbid_unknown_fields=True, tag="input_audio_buffer.clear"):
    """Forget the sound so far."""


class ItemCreate(_Client, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.create"):
    """Add an item after another one: None is the last one, "root" none."""

    item: Item
    previous_item_id: ItemId | None = None


class ItemRetrieve(_Client, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.retrieve"):
    """Show an item with its sound."""

    item_id: ItemId


class ItemDelete(_Client, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.delete"):
    """Forget an item."""

    item_id: ItemId


class ItemTruncate(_Client, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.truncate"):
    """Of what the assistant has said in an item only so many milliseconds have been heard."""

    item_id: ItemId
    content_index: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    audio_end_ms: Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class ResponseCreate(_Client, kw_only=True, forbid_unknown_fields=True, tag="response.create"):
    """Answer: see app.protocol.realtimeresponse."""

    response: dict[str, Any] | None = None


class ResponseCancel(_Client, forbid_unknown_fields=True, tag="response.cancel"):
    """End a response: that of the conversation, or the one that is named."""

    response_id: ItemId | None = None


ClientEvent = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)

_EVENTS: tuple[type[ClientEvent], ...] = (
    SessionUpdate,
    AudioAppend,
    AudioCommit,
    AudioClear,
    ItemCreate,
    ItemRetrieve,
    ItemDelete,
    ItemTruncate,
    ResponseCreate,
    ResponseCancel,
)
_DECODERS: dict[str, FieldDecoder[Any]] = {str(kind.__struct_config__.tag): FieldDecoder(kind, {}) for kind in _EVENTS}
_NOT_HERE = {
    "output_audio_buffer.clear": "the client plays what it gets by itself: cancel the response, truncate its item",
    "transcription_session.update": "this server has realtime sessions only; recordings: /v1/audio/transcriptions",
}
"""Types of OpenAI's that are for other ways to connect, or other sessions."""


class _Envelope(msgspec.Struct):
    type: Any = None
    event_id: Any = None


class BadEventError(Exception):
    """An event of a client that cannot be acted on; `event_id` is the client's."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.event_id = event_id


def decode_event(frame: str | bytes) -> ClientEvent:
    """A client's event.

    Raises:
        BadEventError: it is none of those above, or too large.
    """
    if isinstance(frame, bytes):
        raise BadEventError(_invalid_event("events are JSON in text frames; this is one of bytes"), None)
    data = frame.encode("utf-8", "surrogatepass")
    if len(data) > MAX_EVENT:
        message = f"The event has more than {MAX_EVENT} bytes."
        raise BadEventError(ApiError(413, message, code="event_too_large"), None)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.ValidationError:
        raise BadEventError(_invalid_event("an event is a JSON object"), None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadEventError(ApiError(400, f"The event is no JSON: {reason}.", code="invalid_json"), None) from None
    event_id = envelope.event_id if isinstance(envelope.event_id, str) else None
    try:
        decoded: ClientEvent = _decoder(envelope.type).decode(data)
    except ApiError as error:
        raise BadEventError(error, event_id) from None
    return decoded


def _decoder(kind: object) -> FieldDecoder[Any]:
    if not isinstance(kind, str):
        raise _invalid_event("type, a string, says what an event is", "type")
    if (decoder := _DECODERS.get(kind)) is not None:
        return decoder
    if (reason := _NOT_HERE.get(kind)) is not None:
        raise ApiError(400, f"type: {kind} does nothing here: {reason}.", param="type", code="unknown_event")
    hint = did_you_mean(kind, _DECODERS)
    message = f"type: there is no event {kind[:100]!r}; there are {', '.join(_DECODERS)}{hint or '.'}"
    raise ApiError(400, message, param="type", code="unknown_event")


def _invalid_event(problem: str, param: str | None = None) -> ApiError:
    return ApiError(400, f"This is no event: {problem}.", param=param, code="invalid_event")
