"""A sound file leaves as Audio events that are, joined, the file."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from app.engines.soundpieces import SoundPieces
from app.protocol.speechtask import SpeechTask
from tests.engines.speech.asking import Asked

PIECES = [np.full(count, 0.5, np.float32) for count in (100, 7, 1)]


def sent(**fields: Any) -> Asked:
    """What is emitted of PIECES at 24 kHz."""
    task = SpeechTask(**fields)
    asked = Asked(task)
    sound = SoundPieces(asked, task, 24_000)
    for samples in PIECES:
        data = sound.push(samples)
        if task.streamed:
            sound.emit(data, sound.samples)
    sound.emit(sound.finish(), sound.samples, last=True)
    return asked


def test_a_file_is_one_event() -> None:
    (piece,) = sent(format="wav").pieces
    assert (len(piece.data), piece.samples, piece.sample_rate, piece.format) == (44 + 216, 108, 24_000, "wav")


def test_a_stream_that_ended_with_its_last_piece_has_no_empty_one_after_it() -> None:
    assert [piece.samples for piece in sent(format="pcm", streamed=True).pieces] == [100, 7, 1]


def test_what_was_held_back_comes_last() -> None:
    asked = sent(format="pcm", streamed=True, sample_rate=8000)
    assert sum(piece.samples for piece in asked.pieces) == len(asked.samples) == 36


@pytest.mark.parametrize("streamed", [False, True])
def test_base64_of_pieces_is_that_of_the_whole(streamed: bool) -> None:
    plain, coded = sent(format="pcm", streamed=streamed), sent(format="pcm", streamed=streamed, base64=True)
    assert base64.b64decode(coded.file, validate=True) == plain.file


def test_a_transcript_goes_with_the_last_piece_though_that_is_empty() -> None:
    asked = Asked(SpeechTask())
    sound = SoundPieces(asked, SpeechTask(format="pcm", streamed=True), 24_000)
    sound.emit(sound.push(PIECES[0]), sound.samples, "one ")
    sound.emit(sound.finish(), sound.samples, "two", last=True)
    assert [(piece.samples, piece.transcript) for piece in asked.pieces] == [(100, "one "), (0, "two")]
