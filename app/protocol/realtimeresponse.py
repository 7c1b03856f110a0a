"""/v1/realtime: what a client may ask of one response, laid over the session; and the response as it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from app.cluster.messages import Usage
from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.realtimeitems import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
)
from app.protocol.realtimesession import (
    REFUSED,
    MaxTokens,
    Modalities,
    PcmFormat,
    Session,
    Speed,
    Temperature,
    ToolChoice,
    Tools,
    explained,
    modern,
    one_modality,
)
from app.protocol.speech import Name, VoiceId

MAX_INPUT = 1000
_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)]


class ResponseOutput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is said. None: as in the session."""

    format: PcmFormat = msgspec.field(default_factory=PcmFormat)
    voice: Name | VoiceId | None = None
    speed: Speed | None = None


class ResponseAudio(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sound, one way."""

    output: ResponseOutput = msgspec.field(default_factory=ResponseOutput)


class ResponseParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response` of a response.create. None: as in the session, or as usual.

    `conversation` none: the response is no part of the conversation. `input`: what is answered in place of it.
    """

    instructions: Annotated[str, msgspec.Meta(max_length=128 << 10)] | None = None
    output_modalities: Modalities | None = None
    conversation: Literal["auto", "none"] | None = None
    input: (
        Annotated[list[Message | FunctionCall | FunctionCallOutput | ItemReference], msgspec.Meta(max_length=MAX_INPUT)]
        | None
    ) = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    metadata: Metadata | None = None
    audio: ResponseAudio = msgspec.field(default_factory=ResponseAudio)


_OLD_NAMES = ("modalities", "max_response_output_tokens", "voice", "speed", "output_audio_format")
_OF_SESSIONS = ("turn_detection", "input_audio_format", "input_audio_transcription", "input_audio_noise_reduction")
_decoder = FieldDecoder(ResponseParams, REFUSED | dict.fromkeys(_OF_SESSIONS, "it is a matter of the session"))


def response_params(fields: Mapping[str, Any]) -> ResponseParams:
    """What a client asks of a response.

    Raises:
        ApiError: 400; `param` is the path of the field at fault, as the client has named it.
    """
    moved: dict[str, str] = {}
    try:
        return _decoder.build(modern(fields, moved, _OLD_NAMES))
    except ApiError as error:
        raise explained(error, moved, "response") from None


class Asked(msgspec.Struct, kw_only=True):
    """What one response is made of and how. `voice` "": the model's own; `temperature` None: the model's own."""

    model: str
    items: list[Item]
    instructions: str
    modality: Literal["text", "audio"]
    in_conversation: bool
    tools: Tools
    tool_choice: ToolChoice
    parallel_tool_calls: bool | None
    max_output_tokens: MaxTokens
    temperature: float | None
    voice: Name | VoiceId | None
    speed: float
    metadata: dict[str, str] | None
    truncates: bool


def asked_of(session: Session, params: ResponseParams, items: list[Item]) -> Asked:
    """The session's settings with those of one response laid over them."""
    sound = session.audio.output
    output = params.audio.output
    modalities = session.output_modalities if params.output_modalities is None else params.output_modalities
    return Asked(
        model=session.model,
        items=items,
        instructions=_first(params.instructions, session.instructions),
        modality=one_modality(modalities)[0],
        in_conversation=params.conversation != "none",
        tools=_first(params.tools, session.tools),
        tool_choice=_first(params.tool_choice, session.tool_choice),
        parallel_tool_calls=_first(params.parallel_tool_calls, session.parallel_tool_calls),
        max_output_tokens=_first(params.max_output_tokens, session.max_output_tokens),
        temperature=_first(params.temperature, session.temperature),
        voice=_first(output.voice, sound.voice),
        speed=_first(output.speed, sound.speed),
        metadata=params.metadata,
        truncates=session.truncation == "auto",
    )


def _first(own: Any, general: Any) -> Any:
    return general if own is None else own


# --------------------------------------------------------------------------------------------------- as it is told

ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    type: str
    code: str | None
    message: str


class StatusDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a response ended as it did."""

    type: ResponseStatus
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"] | None = None
    error: ResponseError | None = None


class Response(msgspec.Struct, kw_only=True):
    """OpenAI's response object."""

    id: str
    status: ResponseStatus
    output: list[Item]
    conversation_id: str | None
    output_modalities: list[str]
    max_output_tokens: MaxTokens
    audio: dict[str, Any]
    object: Literal["realtime.response"] = "realtime.response"
    status_details: StatusDetails | None = None
    usage: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


def response_of(asked: Asked, response_id: str, conversation_id: str) -> Response:
    """A response that has just begun."""
    voice = asked.voice.id if isinstance(asked.voice, VoiceId) else asked.voice
    return Response(
        id=response_id,
        status="in_progress",
        output=[],
        conversation_id=conversation_id if asked.in_conversation else None,
        output_modalities=[asked.modality],
        max_output_tokens=asked.max_output_tokens,
        audio={"output": {"format": PcmFormat(), "voice": voice}},
        metadata=asked.metadata,
    )


def response_usage(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of a response; what the engine does not tell is text."""
    details = msgspec.json.decode(usage.details, type=dict[str, dict[str, Any]]) if usage.details else {}
    taken, made = usage.prompt_tokens, usage.completion_tokens
    heard = details.get("prompt_tokens_details", {})
    said = details.get("completion_tokens_details", {})
    sound_in, sound_out = heard.get("audio_tokens") or 0, said.get("audio_tokens") or 0
    return {
        "total_tokens": taken + made,
        "input_tokens": taken,
        "output_tokens": made,
        "input_token_details": {
            "cached_tokens": heard.get("cached_tokens") or 0,
            "text_tokens": taken - sound_in,
            "audio_tokens": sound_in,
        },
        "output_token_details": {"text_tokens": made - sound_out, "audio_tokens": sound_out},
    }
