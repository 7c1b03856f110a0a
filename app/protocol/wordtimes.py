"""The times of words in the answers of the routes that speak or listen, and what their forced aligner is asked."""

from __future__ import annotations

from typing import cast

import msgspec

from app.cluster.messages import AnyEvent, Audio
from app.protocol.aligning import AlignTask, AlignTaskOf, Word
from app.protocol.errors import ApiError, unsupported
from app.protocol.speechanswers import Sound, silent, usage_object
from app.protocol.speechtask import SpeechFormat, SpeechTask

TIMES_HEADER = "X-Word-Timestamps"
"""The words as JSON, in ASCII."""
OMITTED_HEADER = "X-Word-Timestamps-Omitted"
"""In its place where they are too long for a header."""
_MOST_BYTES = 4096


def no_aligner(field: str) -> ApiError:
    """400: the server has been started without one."""
    return unsupported(field, "no forced aligner runs here: start the server with --forced-aligner MODEL")


def asked_of_speech(task: SpeechTask) -> AlignTaskOf:
    """What the aligner is asked when the sound of `task` is there; raises `silent` if there is none."""

    def made(events: list[AnyEvent]) -> AlignTask:
        sound = [event for event in events if isinstance(event, Audio)]
        if not sound:
            raise silent()
        whole = sound[0].data if len(sound) == 1 else b"".join(event.data for event in sound)
        return AlignTask(
            text=task.text,
            file=cast("bytes", whole),  # any buffer is encoded, without a copy of its own
            base64=task.base64,
            sample_rate=sound[0].sample_rate if task.format == "pcm" else 0,
            language=task.language,
            sound_field="word_timestamps",
        )

    return made


def times_headers(words: list[Word]) -> dict[str, str]:
    """How a response that is a sound file tells them."""
    told = _ascii(msgspec.json.encode(words).decode())
    if len(told) <= _MOST_BYTES:
        return {TIMES_HEADER: told}
    return {OMITTED_HEADER: f"{len(told)} bytes; send Accept: application/json to have them with the sound"}


def spoken_and_timed(file: bytes, format: SpeechFormat, sound: Sound) -> bytes:
    """The JSON that has the words beside the sound: `file`, which is in base64 already."""
    told = {
        "format": format,
        "sample_rate": sound.sample_rate,
        "words": sound.words,
        "usage": usage_object(sound.usage),
    }
    return b"".join((msgspec.json.encode(told)[:-1], b',"audio":"', file, b'"}'))


def _ascii(text: str) -> str:
    """JSON whose letters beyond ASCII are escaped, as headers need it."""
    units = text.encode("utf-16-be")
    pairs = (int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in pairs)
