"""/v1/realtime: the session, what can be changed of it, and how a change is laid over what holds.

A change is a part of the session object: what it does not name stays, and null turns off what can be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from app.protocol.errors import ApiError, invalid
from app.protocol.fields import FieldDecoder
from app.protocol.speech import Name, VoiceId

Modality = Literal["text", "audio"]
Modalities = Annotated[list[Modality], msgspec.Meta(min_length=1, max_length=2)]
MaxTokens = Annotated[int, msgspec.Meta(ge=1)] | Literal["inf"]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Speed = Annotated[float, msgspec.Meta(ge=0.25, le=4)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class PcmFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The one format of sound, both ways: see app.protocol.realtimeaudio."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class TurnDetection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When somebody speaks is told by loudness; a higher `threshold` (0 to 1) asks for louder speech."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: _Milliseconds = 300
    silence_duration_ms: Annotated[int, msgspec.Meta(ge=20, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class Transcription(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What users say is written down as well. `model` names none: the served one listens."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is heard."""

    format: PcmFormat = msgspec.field(default_factory=PcmFormat)
    noise_reduction: None = None
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = None


class AudioOutput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is said. `voice` None: the model's own."""

    format: PcmFormat = msgspec.field(default_factory=PcmFormat)
    voice: Name | VoiceId | None = None
    speed: Speed = 1.0


class SessionAudio(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sound, both ways."""

    input: AudioInput = msgspec.field(default_factory=AudioInput)
    output: AudioOutput = msgspec.field(default_factory=AudioOutput)


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may ask the client to call; `parameters` is a JSON schema."""

    type: Literal["function"] = "function"
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChosenFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The function that has to be called."""

    type: Literal["function"]
    name: str


ToolChoice = Literal["auto", "none", "required"] | ChosenFunction
Tools = Annotated[list[FunctionTool], msgspec.Meta(max_length=128)]


class Session(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's session object; `temperature` was in it before, and is honoured. None of it: the model's default.

    `truncation`: whether the oldest items are left out when a conversation grows too long. `tracing` has no effect.
    """

    id: str
    object: Literal["realtime.session"] = "realtime.session"
    type: Literal["realtime"] = "realtime"
    model: str
    output_modalities: Modalities
    instructions: Annotated[str, msgspec.Meta(max_length=128 << 10)] = ""
    tools: Tools = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens = "inf"
    temperature: Temperature | None = None
    truncation: Literal["auto", "disabled"] = "auto"
    tracing: Literal["auto"] | dict[str, Any] | None = None
    audio: SessionAudio = msgspec.field(default_factory=SessionAudio)


REFUSED = {
    "prompt": "no prompts are stored here; send instructions",
    "reasoning": "how much a model thinks cannot be set here",
    "include": "there are no probabilities of the tokens of a transcript here",
}
"""Fields of OpenAI's that are not honoured; null is no mistake."""

_BETA = {
    "modalities": ("output_modalities",),
    "max_response_output_tokens": ("max_output_tokens",),
    "voice": ("audio", "output", "voice"),
    "speed": ("audio", "output", "speed"),
    "input_audio_format": ("audio", "input", "format"),
    "output_audio_format": ("audio", "output", "format"),
    "input_audio_noise_reduction": ("audio", "input", "noise_reduction"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "turn_detection": ("audio", "input", "turn_detection"),
}
"""Where fields have gone that clients of the API's first version send."""

_WHY = {
    "audio.input.noise_reduction": "sound reaches the model as it was recorded",
    "audio.input.turn_detection.idle_timeout_ms": "no turn begins without the client",
    "audio.input.turn_detection.type": "no model here tells whether a sentence is complete; send server_vad, or null",
    "audio.input.format.type": "sound is audio/pcm of 24 kHz, both ways",
    "audio.output.format.type": "sound is audio/pcm of 24 kHz, both ways",
    "audio.input.format.rate": "sound is audio/pcm of 24 kHz, both ways",
    "audio.output.format.rate": "sound is audio/pcm of 24 kHz, both ways",
    "type": "this server has realtime sessions only",
    "truncation": "it is auto or disabled",
}
"""Reasons why a field cannot have a value that OpenAI gives it."""

_WHOLE = ("tool_choice", "tracing")
"""Objects that are replaced, not changed in part."""

_decoder = FieldDecoder(Session, REFUSED)


def changed(session: Session, change: Mapping[str, Any]) -> Session:
    """The session as a change of a client makes it; nothing of a change holds if something of it is wrong.

    Raises:
        ApiError: 400; `param` is the path of the field at fault, as the client has named it.
    """
    moved: dict[str, str] = {}
    try:
        new = _decoder.build(_merged(msgspec.to_builtins(session), modern(change, moved)))
        if (new.id, new.object) != (session.id, session.object):
            raise invalid("id" if new.id != session.id else "object", "cannot be changed")
    except ApiError as error:
        raise explained(error, moved, "session") from None
    new.output_modalities = one_modality(new.output_modalities)
    return new


def one_modality(asked: Modalities) -> Modalities:
    """What is heard has a transcript in any case: both is what audio is."""
    return ["audio"] if "audio" in asked else ["text"]


def modern(fields: Mapping[str, Any], moved: dict[str, str], old_names: Iterable[str] = _BETA) -> dict[str, Any]:
    """Fields by the names of today, those among `old_names`; `moved` is told the old name of each path.

    Raises:
        ApiError: 400, a field comes under both names.
    """
    found = {name: value for name, value in fields.items() if name not in REFUSED or value is not None}
    for old in old_names:
        if old not in found:
            continue
        *parents, name = path = _BETA[old]
        place = found
        for parent in parents:
            inner = place.get(parent, {})
            if not isinstance(inner, dict):
                raise invalid(parent, "must be an object")
            place[parent] = place = dict(inner)
        if name in place:
            raise invalid(old, f"says again what {'.'.join(path)} says; give one")
        place[name] = _modern_value(old, found.pop(old))
        moved[".".join(path)] = old
    return found


def _modern_value(name: str, value: Any) -> Any:
    """Formats had a name each."""
    if name.endswith("_format"):
        return {"type": "audio/pcm" if value == "pcm16" else value}
    return value


def _merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        before = old.get(name)
        partly = isinstance(before, dict) and isinstance(value, dict) and name not in _WHOLE
        merged[name] = _merged(before, value) if partly and before is not None else value
    return merged


def explained(error: ApiError, moved: Mapping[str, str], parent: str) -> ApiError:
    """The same refusal with the reason, and with the path of the field in the event, as the client has named it."""
    found = error.body.error
    param = found.param or ""
    reason = next((why for path, why in _WHY.items() if param == path), "")
    code = "unsupported_parameter" if reason and found.code == "invalid_value" else found.code
    message = f"{found.message.rstrip('.')}: {reason}." if reason else found.message
    for path, old in moved.items():
        if param == path or param.startswith((f"{path}.", f"{path}[")):
            message, param = message.replace(path, old, 1), old + param.removeprefix(path)
            break
    param = f"{parent}.{param}" if param else parent
    return ApiError(error.status, message, param=param, code=code)
