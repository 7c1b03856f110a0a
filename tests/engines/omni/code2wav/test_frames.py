"""How many frames a piece is made of, and when they are there."""

from __future__ import annotations

import numpy as np

from app.engines.omni.code2wav.frames import Chunks, Frames, choose_chunks
from app.engines.omni.code2wav.options import Code2WavOptions

CHUNKS = Chunks(first=4, largest=25, context=11, ahead=3)


def pieces(frames: Frames) -> list[int]:
    """Of what is ready."""
    sizes = []
    while frames.ready:
        sizes.append(frames.size)
        frames.made = frames.end
    return sizes


def test_pieces_grow_while_they_come() -> None:
    frames = Frames(CHUNKS, streamed=True)
    ready = []
    for _ in range(90):
        frames.push(np.zeros(1, np.int32))
        ready.append(pieces(frames))
    assert [(count, sizes) for count, sizes in enumerate(ready, 1) if sizes] == [
        (7, [4]),
        (11, [4]),
        (19, [8]),
        (35, [16]),
        (60, [25]),
        (85, [25]),
    ]
    frames.finish()
    assert frames.last
    assert pieces(frames) == [8]


def test_what_is_looked_at_in_any_case_becomes_sound_with_the_rest() -> None:
    frames = Frames(CHUNKS, streamed=True)
    frames.push(np.zeros(11, np.int32))
    frames.finish()
    assert pieces(frames) == [4, 7]


def test_a_file_is_one_piece_when_all_is_there() -> None:
    frames = Frames(CHUNKS, streamed=False)
    frames.push(np.zeros((200, 16), np.int32))
    assert not frames.ready
    frames.finish()
    assert pieces(frames) == [200]


def test_nothing_is_no_piece() -> None:
    frames = Frames(CHUNKS, streamed=True)
    frames.finish()
    assert not frames.ready


def test_what_is_not_said_suits_what_is() -> None:
    def chosen(**said: int) -> tuple[int, int]:
        chunks = choose_chunks(Code2WavOptions(**said), first=4, largest=25, context=11, unit=1)
        return chunks.first, chunks.largest

    assert chosen() == (4, 25)
    assert chosen(codec_chunk_frames=2) == (2, 2)
    assert chosen(initial_codec_chunk_frames=50) == (50, 50)
