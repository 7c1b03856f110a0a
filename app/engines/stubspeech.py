"""What the stub engine says: a ramp of samples, in which a test sees what is lost, doubled or out of order."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import AsyncIterator

import msgspec

from app.cluster.messages import Audio, Failed, Usage
from app.engines.base import EngineError, Request
from app.engines.soundusage import sound_usage
from app.media.base64pieces import Base64Pieces
from app.protocol.speechtask import SpeechCard, SpeechTask, VoiceReport, decode_sample

RATE = 24_000
FRAME_S = 0.2
WORDS = 2
"""In one frame: it says ten words a second."""
_TOKENS = 4
"""In one frame: one for each 50 ms."""
_SPACE = re.compile(r"\s+")
_LEVELS = 1 << 15
_RAMP = array("h", range(_LEVELS)).tobytes() * 2
_UNKNOWN = 0xFFFFFFFF
"""What the header of a WAV file says of sizes that are not known yet."""

VOICES = ["heart", "stone"]
_CARD = SpeechCard(
    family="stub",
    voices=VOICES,
    default_voice=VOICES[0],
    sample_rate=RATE,
    cloning=["audio", "transcribed", "embedding"],
    embedding_size=4,
    speeds=[0.25, 4.0],
    languages=["en", "de"],
    instructions=True,
)
CARD = msgspec.json.encode(_CARD).decode()


def check(task: SpeechTask) -> None:
    """
    Raises:
        EngineError: 400, a voice or a format that the stub does not have.
    """
    if task.format not in ("pcm", "wav"):
        raise _refusal(f"the stub writes pcm and wav, not {task.format}", "response_format")
    if task.sample is None and task.voice not in ("", *VOICES):
        raise _refusal(f"there is no voice {task.voice!r}; there are {', '.join(VOICES)}", "voice")


def check_voice(arguments: bytes) -> bytes:
    """The answer to the Call of that name: it takes anything that has not "noise" in it for a second of speech.

    Raises:
        EngineError: 400.
    """
    sample = decode_sample(arguments)
    if b"noise" in sample.data:
        raise _refusal("the stub hears nobody in the recording", sample.param)
    if sample.embedding and len(sample.embedding) != _CARD.embedding_size:
        raise _refusal(f"the embedding must have {_CARD.embedding_size} numbers", sample.param)
    return msgspec.json.encode(VoiceReport(0.0 if sample.embedding else 1.0))


def _refusal(message: str, param: str) -> EngineError:
    return EngineError(Failed(400, message, "invalid_request_error", param=param, code="invalid_value"))


def ramp(start: int, count: int) -> bytes:
    """`count` samples from position `start` of the sound on: position modulo 2**15, 16 bits, little endian."""
    first = start % _LEVELS * 2
    return _RAMP[first : first + 2 * count]


def wav_header(rate: int, size: int = _UNKNOWN) -> bytes:
    """44 bytes, for one channel of 16 bits; `size` in bytes of samples."""
    whole = min(size + 36, _UNKNOWN)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size
    )


class Speaker:
    """Makes the events of one task, frame by frame."""

    def __init__(self, task: SpeechTask) -> None:
        self._task = task
        self._rate = task.sample_rate or RATE
        self._samples = int(self._rate * FRAME_S / task.speed)
        self._frames = 0
        self._text = ""
        self._held: list[bytes] = []
        self._base64 = Base64Pieces()

    def say(self, text: str) -> list[Audio]:
        """The next frame; none of a task that is not streamed, whose one piece `finish` makes."""
        data = ramp(self._frames * self._samples, self._samples)
        header = wav_header(self._rate) if self._task.format == "wav" and not self._frames else b""
        self._frames += 1
        self._text += text
        if self._task.streamed:
            return [self._piece(header + data, self._samples, text)]
        self._held.append(data)
        return []

    def finish(self) -> list[Audio]:
        """What is left: the whole file of a task that is not streamed, the end of base64 of one that is."""
        if self._task.streamed:
            rest = self._piece(b"", 0, "", last=True) if self._task.base64 else None
            return [rest] if rest is not None and rest.data else []
        data = b"".join(self._held)
        header = wav_header(self._rate, len(data)) if self._task.format == "wav" else b""
        return [self._piece(header + data, len(data) // 2, self._text, last=True)]

    def usage(self) -> Usage:
        """A word is a text token."""
        return sound_usage(len(self._text.split()), _TOKENS * self._frames)

    def _piece(self, data: bytes, samples: int, text: str, *, last: bool = False) -> Audio:
        if self._task.base64:
            data = self._base64.push(data, last=last)
        return Audio(0, memoryview(data), self._task.format, self._rate, samples, text)


async def frames(request: Request, task: SpeechTask, count: int | None) -> AsyncIterator[str]:
    """The text of each frame: `count` of them whatever the text is, or as many as the text takes, as it comes."""
    if count is not None:
        for position in range(count):
            yield f"w{position} "
        return
    said: list[str] = []
    async for word in _words(request, task):
        said.append(word + " ")
        if len(said) == WORDS:
            yield "".join(said)
            said = []
    if said:
        yield "".join(said)


async def _words(request: Request, task: SpeechTask) -> AsyncIterator[str]:
    rest = ""
    async for text in _texts(request, task):
        *whole, rest = _SPACE.split(rest + text)
        for word in filter(None, whole):
            yield word
    if rest:
        yield rest


async def _texts(request: Request, task: SpeechTask) -> AsyncIterator[str]:
    yield task.text
    while task.appended and (more := await request.next_input()) is not None:
        yield more.decode()
