"""What an API worker asks a forced aligner: the body of a Submit of the kind "align", in msgpack, and its answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from app.cluster.messages import AnyEvent


class AlignTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When is each word of `text` said in `file`? A file of any usual format, or with a `sample_rate` (in Hz) bare
    samples: mono, 16 bits, little endian; in base64 where that is said.

    `language` as the client named it, "" if it did not. `text_field` and `sound_field`: the client's words for where
    they are from.
    """

    text: str
    file: bytes
    base64: bool = False
    sample_rate: int = 0
    language: str = ""
    text_field: str = "input"
    sound_field: str = "file"


AlignTaskOf = Callable[[list[AnyEvent]], AlignTask]
"""Makes it of all that the stage before the aligner has answered."""


class Word(msgspec.Struct):
    """One word, as OpenAI's clients read it: from `start` to `end`, in seconds from the beginning of the sound."""

    word: str
    start: float
    end: float


class Alignment(msgspec.Struct):
    """The answer, the JSON of a Document: the words in their order, none of which begins before the one before it."""

    words: list[Word]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AlignTask)
_answer_decoder = msgspec.json.Decoder(Alignment)


def encode_task(task: AlignTask) -> bytes:
    """The body of a Submit."""
    return _encoder.encode(task)


def decode_task(body: bytes) -> AlignTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)


def decode_alignment(document: bytes) -> Alignment:
    """The answer in a Document."""
    return _answer_decoder.decode(document)
