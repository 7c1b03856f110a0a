"""/v1/audio/voices: what an upload may hold, and how voices are told of: OpenAI's fields and vllm-omni's."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec

from app.protocol.errors import ApiError, invalid
from app.protocol.speech import MAX_EMBEDDING
from app.protocol.speechtask import SpeechCard, VoiceSample
from app.store.voices import VoiceRecord

MAX_SAMPLE = 10 << 20
"""Bytes of a recording, OpenAI's limit."""
RESERVED = "default"
"""The name that stands for the model's own voice."""

REFUSED = {
    "prompt": "no model here makes a voice of a description; upload a recording",
    "script_hint": "no model here makes a voice of a description; upload a recording",
    "voice": "its name on this route is name",
    "text": "the transcript's name is ref_text",
    "ref_audio": "its name on this route is audio_sample",
    "audio": "its name on this route is audio_sample",
    "file": "its name on this route is audio_sample",
    "description": "its name on this route is speaker_description",
}
"""Fields that clients may send here, and why they are refused."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9 _.-]{0,62}[A-Za-z0-9_-])?", re.ASCII)


class VoiceUpload(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/audio/voices. In a form, `audio_sample` is a file, and `speaker_embedding` is written as JSON."""

    name: str
    consent: Annotated[str, msgspec.Meta(max_length=2000)]
    type: Literal["audio_sample"] = "audio_sample"
    audio_sample: str | None = None
    speaker_embedding: list[float] | str | None = None
    ref_text: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    speaker_description: Annotated[str, msgspec.Meta(max_length=1000)] | None = None

    def record(self, sample: bytes, mime_type: str, created_at: int) -> VoiceRecord:
        """What is kept of it, with the recording if there is one.

        Raises:
            ApiError: 400, a field is empty or does not go with another one.
        """
        check_name(self.name)
        if not self.consent.strip():
            raise invalid("consent", "must say that the speaker has agreed")
        embedding = self._embedding()
        if bool(sample) == bool(embedding):
            raise invalid("audio_sample", "or speaker_embedding is needed, one of them")
        if self.ref_text and not sample:
            raise invalid("ref_text", "is the transcript of audio_sample, which is not given")
        return VoiceRecord(
            name=self.name,
            consent=self.consent,
            created_at=created_at,
            mime_type=mime_type,
            size=len(sample),
            text=(self.ref_text or "").strip(),
            description=self.speaker_description or "",
            sample=sample,
            embedding=embedding,
        )

    def _embedding(self) -> list[float]:
        given = self.speaker_embedding
        if given is None:
            return []
        try:
            numbers = msgspec.json.decode(given, type=list[float]) if isinstance(given, str) else given
        except msgspec.DecodeError:
            raise invalid("speaker_embedding", "must be a list of numbers, written as JSON") from None
        if not 1 <= len(numbers) <= MAX_EMBEDDING or not all(map(math.isfinite, numbers)):
            raise invalid("speaker_embedding", f"must be 1 to {MAX_EMBEDDING} finite numbers")
        return numbers


def check_name(name: str) -> None:
    """
    Raises:
        ApiError: 400, no voice can have this name.
    """
    if not _NAME.fullmatch(name):
        rule = "must be 1 to 64 letters, digits, spaces, _ . and -, beginning with none of the last two or a space"
        raise invalid("name", rule + ", ending with no space or dot")


def check_free(card: SpeechCard, name: str) -> None:
    """
    Raises:
        ApiError: 409, the model has a voice of that name.
    """
    if built_in(card, name) or name.lower() == RESERVED:
        message = f"name: {name!r} is a voice of the served model; choose another name."
        raise ApiError(409, message, param="name", code="voice_exists")


def built_in(card: SpeechCard | None, name: str) -> bool:
    """Whether the model itself has a voice of that name, in whatever case."""
    return card is not None and name.lower() in (voice.lower() for voice in card.voices)


def sample_of(record: VoiceRecord, param: str) -> VoiceSample:
    """The voice as a speech replica takes it; `param` is the field by which the client named it."""
    return VoiceSample(data=record.sample, text=record.text, embedding=record.embedding, param=param)


def uploaded(record: VoiceRecord) -> dict[str, Any]:
    """An uploaded voice as clients see it: OpenAI's fields first, then vllm-omni's."""
    source = "speaker_embedding" if record.embedding else "audio_sample"
    shown = {
        "id": record.name,
        "object": "audio.voice",
        "type": source,
        "name": record.name,
        "created_at": record.created_at,
        "consent": record.consent,
        "file_size": record.size,
        "mime_type": record.mime_type or None,
        "embedding_source": "direct" if record.embedding else "audio",
        "embedding_dim": len(record.embedding) or None,
        "ref_text": record.text or None,
        "speaker_description": record.description or None,
    }
    return {name: value for name, value in shown.items() if value is not None}


def of_model(card: SpeechCard, name: str) -> dict[str, Any]:
    """A voice of the model itself, by its name in whatever case."""
    voice = next(voice for voice in card.voices if voice.lower() == name.lower())
    return {"id": voice, "object": "audio.voice", "type": "built_in", "name": voice}


def created(record: VoiceRecord) -> dict[str, Any]:
    """The answer to an upload, as both APIs know it."""
    shown = uploaded(record)
    return {**shown, "success": True, "voice": shown}


def deleted(name: str) -> dict[str, Any]:
    """The answer to a deletion, as both APIs know it."""
    message = f"The voice {name!r} is deleted."
    return {"id": name, "object": "audio.voice.deleted", "deleted": True, "success": True, "message": message}


def listed(card: SpeechCard | None, records: list[VoiceRecord]) -> dict[str, Any]:
    """All names that a speech request may give as its voice, and what has been uploaded."""
    names = {*(card.voices if card else ()), *(record.name for record in records)}
    if card:
        names.add(RESERVED)
    return {"voices": sorted(names), "uploaded_voices": [uploaded(record) for record in records]}
