"""/v1/audio/speech/stream: the messages of its WebSocket, in JSON; sound travels between them as binary frames."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.protocol.errors import ApiError, ErrorObject, unsupported
from app.protocol.fields import FieldDecoder
from app.protocol.speech import REFUSED, Manner, speech_task
from app.protocol.speechtask import SpeechTask
from app.settings.problems import did_you_mean
from app.settings.schema import SpeechConfig

MAX_CONFIG = 4 << 20
"""Characters of a session.config: there is room for a recording of half a minute as a data URL."""
MAX_MESSAGE = 128 << 10
"""Characters of every other message."""

_EventId = Annotated[str, msgspec.Meta(max_length=128)] | None
_NOT_HERE = {
    **{name: reason for name, reason in REFUSED.items() if name != "stream_audio"},
    "input": "the text comes in messages of the type input.text",
    "stream": "sound always comes as it is made",
    "stream_format": "sound always comes as it is made, in binary frames",
}


class SessionConfig(Manner, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="session.config"):
    """How the utterances that follow are spoken. `stream_audio` and `split_granularity` can only be what they are."""

    event_id: _EventId = None
    model: str | None = None
    stream_audio: bool | None = None
    split_granularity: str | None = None

    def task(self, limits: SpeechConfig) -> SpeechTask:
        """What a replica is asked for each utterance; its text is appended to it.

        Raises:
            ApiError: 400, a value, or two that do not go together; `param` is the field.
        """
        if self.stream_audio is False:
            raise unsupported("stream_audio", "sound always comes as it is made")
        if self.split_granularity not in (None, "sentence"):
            raise unsupported("split_granularity", "text is spoken sentence by sentence")
        task = speech_task(self, "some text", limits, streamed=True)
        return msgspec.structs.replace(task, text="", appended=True)


class _Client(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: _EventId = None


class InputText(_Client, kw_only=True, forbid_unknown_fields=True, tag="input.text"):
    """The next piece of an utterance, cut wherever it suits the client."""

    text: str


class InputDone(_Client, forbid_unknown_fields=True, tag="input.done"):
    """The utterance is complete."""


class InputCancel(_Client, forbid_unknown_fields=True, tag="input.cancel"):
    """Nothing more shall be heard of what has been sent."""


class SessionClose(_Client, forbid_unknown_fields=True, tag="session.close"):
    """Say what has been sent, then close the socket."""


class Ping(_Client, forbid_unknown_fields=True, tag="ping"):
    """A sign of life; answered with a Pong."""


ClientMessage = SessionConfig | InputText | InputDone | InputCancel | SessionClose | Ping

_MESSAGES: tuple[type[ClientMessage], ...] = (
    SessionConfig,
    InputText,
    InputDone,
    InputCancel,
    SessionClose,
    Ping,
)
_DECODERS: dict[str, FieldDecoder[Any]] = {
    str(kind.__struct_config__.tag): FieldDecoder(kind, _NOT_HERE) for kind in _MESSAGES
}


class _Envelope(msgspec.Struct):
    type: Any = None
    event_id: Any = None


class BadMessageError(Exception):
    """A message of a client that cannot be acted on."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.event_id = event_id


def decode_message(text: str) -> ClientMessage:
    """A client's message.

    Raises:
        BadMessageError: it is none of those above, or too large.
    """
    data = text.encode()
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessageError(_no_json(error), None) from None
    event_id = envelope.event_id if isinstance(envelope.event_id, str) else None
    try:
        return _decode(data, envelope.type)
    except ApiError as error:
        raise BadMessageError(error, event_id) from None


def _decode(data: bytes, kind: object) -> ClientMessage:
    decoder = _DECODERS.get(kind) if isinstance(kind, str) else None
    if decoder is None:
        hint = did_you_mean(kind, _DECODERS) if isinstance(kind, str) else ""
        message = f"type: must be one of {', '.join(_DECODERS)}{hint or '.'}"
        raise ApiError(400, message, param="type", code="invalid_value")
    limit = MAX_CONFIG if kind == "session.config" else MAX_MESSAGE
    if len(data) > limit:
        raise too_large(limit)
    decoded: ClientMessage = decoder.decode(data)
    return decoded


def too_large(limit: int) -> ApiError:
    """A message has more than `limit` bytes."""
    return ApiError(413, f"The message has more than {limit} bytes.", code="message_too_large")


def _no_json(error: Exception) -> ApiError:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return ApiError(400, f"The message is not a JSON object: {reason}.", code="invalid_json")


# ------------------------------------------------------------------------------------------------ the server's


class _Server(msgspec.Struct, kw_only=True, tag_field="type", omit_defaults=True):
    def encode(self) -> str:
        """The message as a text frame."""
        return msgspec.json.encode(self).decode()


class SessionConfigured(_Server, kw_only=True, tag="session.configured"):
    """The answer to a session.config; the log knows the socket by `session_id`."""

    session_id: str
    model: str
    response_format: str
    voice: str | None = None


class AudioStart(_Server, kw_only=True, tag="audio.start"):
    """The binary frames up to audio.done are one file of `format`: the sound of this utterance."""

    utterance_index: int
    format: str
    sample_rate: int


class AudioSentence(_Server, kw_only=True, tag="audio.sentence"):
    """What follows begins to say `text`, `offset` samples after the beginning of the utterance."""

    utterance_index: int
    sentence_index: int
    text: str
    offset: int


class AudioDone(_Server, kw_only=True, tag="audio.done"):
    """The file of the utterance is complete, or will not be: `error`, or `cancelled`."""

    utterance_index: int
    total_bytes: int
    samples: int
    error: bool
    cancelled: bool


Status = Literal["completed", "cancelled", "failed"]


class SessionDone(_Server, kw_only=True, tag="session.done"):
    """Nothing more comes of this utterance."""

    utterance_index: int
    total_sentences: int
    status: Status
    usage: dict[str, Any] | None = None


class SessionClosed(_Server, kw_only=True, tag="session.closed"):
    """The last message of a session that the client has closed."""

    utterances: int


class Pong(_Server, kw_only=True, tag="pong"):
    """The answer to a ping."""

    event_id: str | None = None


class SocketError(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    """Every error. `utterance_index`: what failed, where it was an utterance; `event_id`: the client's message."""

    error: ErrorObject
    utterance_index: int | msgspec.UnsetType = msgspec.UNSET
    event_id: str | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> str:
        """The message as a text frame."""
        return msgspec.json.encode(self).decode()


def socket_error(error: ApiError, *, utterance_index: int | None = None, event_id: str | None = None) -> SocketError:
    """An error as the client is told of it."""
    unset = msgspec.UNSET
    return SocketError(
        error=error.body.error,
        utterance_index=unset if utterance_index is None else utterance_index,
        event_id=unset if event_id is None else event_id,
    )
