"""What an API worker asks a speech replica for: the body of a Submit of the kind "speech", in msgpack.

What the routes can judge without the model has been judged when a task is made; what only the model can judge (its
voices, whether it has speed, instructions or languages) is judged in the replica before Accepted.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
"""mp3; Opus in Ogg; AAC in ADTS; FLAC; WAV of 16 bits; bare samples of 16 bits, little endian."""


class VoiceSample(msgspec.Struct, omit_defaults=True):
    """A voice to imitate: a recording as the bytes of its file or as a URL, with its transcript; or an embedding.

    `param` is the field that it came in, as the client knows it, for what is said of it.
    """

    data: bytes = b""
    url: str = ""
    text: str = ""
    embedding: list[float] = []
    param: str = "ref_audio"


class SpeechTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One text to speak. Empty, 0 and None mean: not given, the model's own default holds.

    `appended`: further text comes with Append messages (UTF-8), and `text` is only its beginning. `sample_rate` in Hz.
    `streamed`: the sound is sent in pieces as it is made; otherwise in one piece when it is complete. `base64`:
    Audio.data comes in base64. `extra` are arguments of the model's own.
    """

    text: str = ""
    appended: bool = False
    voice: str = ""
    sample: VoiceSample | None = None
    format: SpeechFormat = "mp3"
    sample_rate: int = 0
    speed: float = 1.0
    instructions: str = ""
    language: str = ""
    seed: int | None = None
    extra: dict[str, Any] = {}
    streamed: bool = False
    base64: bool = False


class SpeechCard(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Capabilities.card of a speech stage, as JSON: what a request may ask for.

    `cloning`: how a voice can be given, "audio" (a recording), "transcribed" (a recording and its transcript) or
    "embedding" (of `embedding_size` numbers). `speeds`: the slowest and fastest, empty if it has one speed only.
    """

    family: str
    voices: list[str]
    default_voice: str
    sample_rate: int
    cloning: list[Literal["audio", "transcribed", "embedding"]] = []
    embedding_size: int = 0
    speeds: list[float] = []
    languages: list[str] = []
    instructions: bool = False


class VoiceReport(msgspec.Struct):
    """The answer to the Call "check_voice" of a VoiceSample that can be imitated, in JSON. Embeddings: 0 seconds."""

    seconds: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SpeechTask)
_sample_decoder = msgspec.msgpack.Decoder(VoiceSample)


def encode_task(task: SpeechTask) -> bytes:
    """The body of a Submit."""
    return _encoder.encode(task)


def decode_task(body: bytes) -> SpeechTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)


def encode_sample(sample: VoiceSample) -> bytes:
    """The arguments of the Call "check_voice"."""
    return _encoder.encode(sample)


def decode_sample(arguments: bytes) -> VoiceSample:
    """The sample in the arguments of the Call "check_voice".

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _sample_decoder.decode(arguments)
