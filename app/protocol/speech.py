"""/v1/audio/speech: what a request may hold, alone or as an item of a batch, and the task made of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.protocol.decoding import check_arguments
from app.protocol.errors import ApiError, invalid, unsupported
from app.protocol.speechtask import SpeechFormat, SpeechTask, VoiceSample
from app.settings.schema import SpeechConfig

CONTENT_TYPES: dict[SpeechFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
MAX_EMBEDDING = 8192
MAX_SEED = 2**63 - 1
_LARGEST = 3.4028234e38
_SIZED: tuple[SpeechFormat, ...] = ("wav", "flac")
"""Formats whose header says how long the sound is: a stream has to leave that out."""

REFUSED = {
    "task_type": "a model here has one task; a voice is chosen with voice, or given as ref_audio",
    "ref_audio_2": "no model here speaks with two voices at once",
    "ambient_sound": "no model here takes one",
    "duration_seconds": "the text says how long its speech is",
    "initial_codec_chunk_frames": "the model decides how it cuts its sound into pieces",
    "non_streaming_mode": "use stream and stream_format",
    "stream_audio": "its name on this route is stream_format",
    "extra_args": "its name here is extra_params",
    "extra_body": "clients put its members at the root of the body",
    "format": "its name on this route is response_format",
    "text": "its name on this route is input",
}
"""Fields that clients of vllm-omni's or of other servers send, and why they are refused."""

Name = Annotated[str, msgspec.Meta(max_length=256)]
Delivered = Literal["whole", "pieces", "events"]
"""One file with its length; the same file in pieces as they are made; server-sent events."""


class VoiceId(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's way to name a voice of one's own."""

    id: Name


class Recording(msgspec.Struct, forbid_unknown_fields=True):
    """A recording to imitate, a URL, with its transcript."""

    audio_path: str
    text: str | None = None


class Manner(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a text is spoken. None: not given, so the model's default holds, or that of the batch."""

    voice: Name | VoiceId | None = None
    speaker: Name | None = None
    response_format: SpeechFormat | None = None
    sample_rate: Annotated[int, msgspec.Meta(ge=4000, le=192_000)] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=4)] | None = None
    instructions: str | None = None
    language: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    ref_audio: str | list[str] | None = None
    ref_text: str | None = None
    references: list[Recording] | None = None
    speaker_embedding: list[Any] | None = None
    x_vector_only_mode: bool | None = None
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None
    extra_params: dict[str, Any] | None = None
    word_timestamps: bool | None = None

    @property
    def format(self) -> SpeechFormat:
        """The format of the file: OpenAI's default."""
        return self.response_format or "mp3"

    def voice_name(self) -> str:
        """The voice by its name, "" for the model's own.

        Raises:
            ApiError: 400, it is named twice, or the name is empty.
        """
        if self.voice is not None and self.speaker is not None:
            raise invalid("speaker", "is another name of voice; give one of them")
        field = "voice" if self.voice is not None else "speaker"
        voice = getattr(self, field)
        name = voice.id if isinstance(voice, VoiceId) else voice
        if name is not None and not name.strip():
            raise invalid(field, "must not be empty")
        return "" if name in (None, "default") else name

    def sample(self) -> VoiceSample | None:
        """The voice that the request itself brings along.

        Raises:
            ApiError: 400, it comes in several ways, or is incomplete.
        """
        given = [name for name in ("ref_audio", "references", "speaker_embedding") if getattr(self, name) is not None]
        if len(given) > 1:
            raise invalid(given[1], f"cannot be given together with {given[0]}")
        if self.ref_text is not None and given != ["ref_audio"]:
            raise invalid("ref_text", "is the transcript of ref_audio, which is not given")
        if self.x_vector_only_mode and (not given or self._transcript):
            raise invalid("x_vector_only_mode", "needs a recording without its transcript")
        if not given:
            return None
        if given == ["speaker_embedding"]:
            return VoiceSample(embedding=_numbers(self.speaker_embedding or []), param="speaker_embedding")
        return VoiceSample(url=self._recording(), text=self._transcript, param=given[0])

    @property
    def _transcript(self) -> str:
        return (self.references[0].text if self.references else self.ref_text) or ""

    def _recording(self) -> str:
        field = "ref_audio" if self.ref_audio is not None else "references"
        urls = [item.audio_path for item in self.references or []] if field == "references" else self.ref_audio
        if isinstance(urls, list) and len(urls) != 1:
            raise invalid(field, f"must be one recording, got {len(urls)}")
        url = urls[0] if isinstance(urls, list) else urls
        if not url or not url.strip():
            raise invalid(field, "is empty; it must be the URL of a recording")
        return url


VOICE_FIELDS = (
    "voice",
    "speaker",
    "ref_audio",
    "ref_text",
    "references",
    "speaker_embedding",
    "x_vector_only_mode",
)
"""Whose voice it is: an item of a batch that gives one of them takes none of them from the batch."""


class SpeechRequest(Manner, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/audio/speech. `user` has no effect on speech."""

    input: str
    model: str | None = None
    stream: bool | None = None
    stream_format: Literal["sse", "audio"] | None = None
    user: str | None = None

    def check(self) -> None:
        """
        Raises:
            ApiError: 400, fields that do not go together.
        """
        if self.stream is False and self.stream_format is not None:
            raise invalid("stream_format", "says how the answer is streamed; stream is false")
        if self.word_timestamps and (self.stream or self.stream_format is not None):
            raise invalid("word_timestamps", "are known when all is said: leave out stream and stream_format")

    @property
    def delivered(self) -> Delivered:
        """How the sound comes: in pieces unless asked otherwise, if the file loses nothing by it."""
        if self.word_timestamps:
            return "whole"
        if self.stream_format is not None:
            return "events" if self.stream_format == "sse" else "pieces"
        if self.stream is not None:
            return "events" if self.stream else "whole"
        return "whole" if self.format in _SIZED else "pieces"


def speech_task(
    asked: Manner,
    text: str,
    limits: SpeechConfig,
    *,
    streamed: bool = False,
    base64: bool = False,
    timed: bool = False,
) -> SpeechTask:
    """The task for a replica. Its voice may still be one that a client has uploaded. `timed`: who asks sees to
    word_timestamps.

    Raises:
        ApiError: 400, a value, or two that do not go together; `param` is the field.
    """
    _check_text(text, limits.max_characters)
    task = manner_task(asked, limits, streamed=streamed, base64=base64, timed=timed)
    task.text = text
    return task


def manner_task(
    asked: Manner, limits: SpeechConfig, *, streamed: bool, base64: bool, timed: bool = False
) -> SpeechTask:
    """The task without its text; raises what `speech_task` raises."""
    if asked.word_timestamps and not timed:
        raise unsupported(
            "word_timestamps", "POST /v1/audio/speech has them, other ways to have a text spoken have not"
        )
    instructions = asked.instructions or ""
    if len(instructions) > limits.tts_max_instructions_length:
        most = f"{limits.tts_max_instructions_length} characters (--tts-max-instructions-length)"
        raise invalid("instructions", f"has {len(instructions)} characters; at most {most} are taken")
    return SpeechTask(
        voice=asked.voice_name(),
        sample=asked.sample(),
        format=asked.format,
        sample_rate=asked.sample_rate or 0,
        speed=1.0 if asked.speed is None else asked.speed,
        instructions=instructions,
        language=asked.language or "",
        seed=asked.seed,
        extra=_extra(asked),
        streamed=streamed,
        base64=base64,
    )


def _check_text(text: str, most: int) -> None:
    if not text.strip():
        raise invalid("input", "must not be empty")
    if len(text) > most:
        raise ApiError(
            400,
            f"input: has {len(text)} characters; at most {most} are spoken at once (--max-speech-characters).",
            param="input",
            code="string_above_max_length",
        )


def _extra(asked: Manner) -> dict[str, Any]:
    extra = dict(asked.extra_params or {})
    check_arguments(extra, "extra_params")
    if asked.max_new_tokens is not None:
        if "max_new_tokens" in extra:
            raise invalid("max_new_tokens", "is given in extra_params too")
        extra["max_new_tokens"] = asked.max_new_tokens
    return extra


def _numbers(embedding: list[Any]) -> list[float]:
    """The embedding, which vllm-omni's clients may also send as a list of one."""
    if len(embedding) == 1 and isinstance(embedding[0], list):
        embedding = embedding[0]
    if not 0 < len(embedding) <= MAX_EMBEDDING:
        raise invalid("speaker_embedding", f"must have 1 to {MAX_EMBEDDING} numbers, got {len(embedding)}")
    for position, number in enumerate(embedding):
        if isinstance(number, bool) or not isinstance(number, int | float) or not -_LARGEST <= number <= _LARGEST:
            raise invalid(f"speaker_embedding[{position}]", "must be a number that fits into 32 bits")
    return [float(number) for number in embedding]
