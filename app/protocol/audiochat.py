"""/v1/chat/completions where the answer is to be heard: what is asked for, and what each stage is asked in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from app.protocol.decoding import check_arguments
from app.protocol.errors import ApiError, invalid
from app.protocol.fields import FieldDecoder
from app.protocol.generation import StreamOptions, UsageMode
from app.protocol.speech import Manner, manner_task
from app.protocol.speechtask import SpeechFormat, SpeechTask
from app.protocol.stageparams import NAME, Params, StageParams, merged, params_of, place
from app.settings.schema import SpeechConfig

MODALITIES = ("text", "audio")
PCM_RATE = 24_000
"""Hz: what OpenAI's clients take bare samples for."""

_OURS = ("modalities", "audio", "sampling_params_list")
"""Fields that the text stage is not sent."""
_NAMES = {"response_format": "format"}


class Sound(Manner, kw_only=True, forbid_unknown_fields=True, rename=_NAMES):
    """`audio`: OpenAI's voice and format, and beside them what /v1/audio/speech takes of how a text is spoken."""

    response_format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm16", "pcm"] | None = None  # type: ignore[assignment]

    @property
    def format(self) -> SpeechFormat:
        """The format of the file, in the words of the speech stage."""
        return "pcm" if self.response_format == "pcm16" else self.response_format or "wav"


class AudioChat(msgspec.Struct):
    """The fields that are judged here; the text stage judges the others. Members of `audio` are those of Sound."""

    modalities: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    audio: Params | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    sampling_params_list: StageParams | None = None

    @property
    def usage_mode(self) -> UsageMode:
        """Where a stream carries usage."""
        return "never" if self.stream_options is None else self.stream_options.usage_mode

    @property
    def readable(self) -> bool:
        """The answer is to be read, too."""
        return "text" in (self.modalities or ())

    def check(self) -> None:
        """
        Raises:
            ApiError: 400, modalities that are not made here, or what cannot be said aloud.
        """
        for position, name in enumerate(self.modalities or ()):
            if name not in MODALITIES or name in (self.modalities or [])[:position]:
                problem = "is there twice" if name in MODALITIES else "is not made here together with speech"
                raise invalid(f"modalities[{position}]", f"{name[:50]!r} {problem}; it is text, audio or both")
        if "audio" not in (self.modalities or ()):
            raise invalid("audio", 'is for answers that are heard: set modalities to ["text", "audio"] as well')
        if self.audio is None:
            message = 'audio is required with the modality audio, such as {"voice": "heart", "format": "wav"}.'
            raise ApiError(400, message, param="audio", code="missing_required_parameter")
        if self.n not in (None, 1):
            raise _unsupported("n", "one answer can be heard, not several at once")
        if (self.response_format or {}).get("type", "text") != "text":
            raise _unsupported("response_format", "what is spoken is plain text")


class Parts(msgspec.Struct, frozen=True):
    """One request as its stages are asked: the body of the chat, and the task of those that make it heard.

    `places`: where the client gave what is called otherwise in refusals of the task.
    """

    asked: AudioChat
    chat: bytes
    speech: SpeechTask
    places: Mapping[str, str] = {}


_decode = FieldDecoder(AudioChat, {}).decode
_decode_sound = FieldDecoder(Sound, {}).decode
_fields = msgspec.json.Decoder(Params).decode
_values = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def parts_of(body: bytes, stages: Sequence[int], limits: SpeechConfig) -> Parts:
    """The request in `body`, judged. `stages` by their position in the pipeline: the one that writes the text, a talker
    where it is one that says it, and the one that makes the sound.

    Raises:
        ApiError: 400, with the field at fault as `param`.
    """
    asked = _decode(body)
    asked.check()
    for_text, *for_talker, for_sound = params_of(asked.sampling_params_list, *stages)
    given = zip(stages[1:], (*for_talker, for_sound), strict=True)
    places = {f"audio.{name}": place(stage, name) for stage, params in given for name in params}
    try:
        speech = _task(merged(asked.audio or {}, for_sound, stages[-1]), limits, streamed=bool(asked.stream))
    except ApiError as error:
        raise placed(error, places) from None
    for talker, params in zip(stages[1:-1], for_talker, strict=True):
        speech.extra = merged(speech.extra, _values(_encode(params)), talker)
        check_arguments(speech.extra, NAME)
    chat = {name: value for name, value in _fields(body).items() if name not in _OURS}
    return Parts(asked, _encode(merged(chat, for_text, stages[0])), speech, places)


def placed(error: ApiError, places: Mapping[str, str]) -> ApiError:
    """The same refusal with the field where the client gave it."""
    found = error.body.error
    found.param = places.get(found.param or "", found.param)
    return error


def _task(fields: Params, limits: SpeechConfig, *, streamed: bool) -> SpeechTask:
    try:
        sound = _decode_sound(_encode(fields))
    except ApiError as error:
        raise _below_audio(error) from None
    try:
        task = manner_task(sound, limits, streamed=streamed, base64=True)
    except ApiError as error:
        raise of_audio(error) from None
    task.appended = True
    if task.format == "pcm" and not task.sample_rate:
        task.sample_rate = PCM_RATE
    if task.sample is not None:
        task.sample.param = f"audio.{task.sample.param}"
    return task


def of_audio(error: ApiError) -> ApiError:
    """The same refusal of the speech stage, whose parameters are members of `audio` here."""
    error.body.error.param = _NAMES.get(error.body.error.param or "", error.body.error.param)
    return _below_audio(error)


def _below_audio(error: ApiError) -> ApiError:
    found = error.body.error
    if found.param is not None and not found.param.startswith("audio."):
        found.param = f"audio.{found.param}"
    return error


def _unsupported(param: str, reason: str) -> ApiError:
    message = f"{param} cannot be honoured together with audio: {reason}."
    return ApiError(400, message, param=param, code="unsupported_parameter")
