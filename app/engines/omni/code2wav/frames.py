"""The codec frames of one request, and how many of them the next piece of its sound is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from app.engines.omni.code2wav.family import Codes
from app.engines.omni.code2wav.options import Code2WavOptions


class Chunks(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of pieces in codec frames: `first`, then each as long as all before it together, none above `largest`.

    So the next piece is there in time, if codes come and become sound no slower than that is heard.
    `context`: frames before a piece that are computed again with it. `ahead`: frames after it that have to be known.
    """

    first: int
    largest: int
    context: int
    ahead: int

    def size(self, made: int) -> int:
        """Of the next piece, where `made` frames have become sound."""
        return min(max(self.first, made), self.largest)


def choose_chunks(
    options: Code2WavOptions, *, first: int, largest: int, context: int, ahead: int = 0, ahead_least: int = 0, unit: int
) -> Chunks:
    """What the stage says, or what suits the model: the other arguments.

    `unit`: frames that the model handles together. Less context than `context`, or looking ahead less than
    `ahead_least`, would be heard.

    Raises:
        ValueError: the stage says what cannot be with this model.
    """
    chunks = Chunks(
        first=options.initial_codec_chunk_frames or min(first, options.codec_chunk_frames or first),
        largest=options.codec_chunk_frames or max(largest, options.initial_codec_chunk_frames),
        context=options.codec_left_context_frames or context,
        ahead=ahead if options.codec_right_context_frames is None else options.codec_right_context_frames,
    )
    if chunks.first > chunks.largest:
        raise ValueError(
            f"initial_codec_chunk_frames: {chunks.first} are more than codec_chunk_frames, {chunks.largest}"
        )
    _check_least("codec_left_context_frames", chunks.context, context)
    _check_least("codec_right_context_frames", chunks.ahead, ahead_least)
    if chunks.ahead and not ahead:
        raise ValueError("codec_right_context_frames: this model does not look ahead; leave it out")
    for name, frames in (
        ("initial_codec_chunk_frames", chunks.first),
        ("codec_chunk_frames", chunks.largest),
        ("codec_left_context_frames", chunks.context),
        ("codec_right_context_frames", chunks.ahead),
    ):
        if frames % unit:
            raise ValueError(f"{name} must be a multiple of {unit} with this model; got {frames}")
    return chunks


def _check_least(name: str, frames: int, least: int) -> None:
    if frames < least:
        raise ValueError(f"{name}: {frames} are too few; this model needs {least}, which it takes where none are given")


class Frames:
    """Implements what families share of app.engines.omni.code2wav.family.Decoding.

    `codes` are all frames so far, `made` of which have become sound.
    """

    def __init__(self, chunks: Chunks, streamed: bool) -> None:
        self.codes: list[Any] = []
        self.made = 0
        self.chunks = chunks
        self._streamed = streamed
        self._finished = False

    def push(self, codes: Codes) -> None:
        self.codes += codes.tolist()

    def finish(self) -> None:
        self._finished = True

    @property
    def ready(self) -> bool:
        return self.end > self.made

    @property
    def size(self) -> int:
        return self.end - self.made

    @property
    def last(self) -> bool:
        """Whether the next piece is the last one."""
        return self._finished and self.end == len(self.codes)

    @property
    def end(self) -> int:
        """Where the next piece ends; `made` where it is not known yet."""
        total, end = len(self.codes), self.made + self.chunks.size(self.made)
        if self._finished:
            return end if self._streamed and end + self.chunks.ahead < total else total
        return end if self._streamed and end + self.chunks.ahead <= total else self.made
