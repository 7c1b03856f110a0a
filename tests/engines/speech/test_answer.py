"""The answer of a request: pieces of one file, each with its text, and what they cost."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from tests.engines.speech.asking import TEXT, Asked, ask, task

SENTENCES = ["The first sentence is short. ", "Here comes a second one, which is longer. ", "And a third!"]


def decoded(file: bytes) -> np.ndarray[Any, Any]:
    with av.open(BytesIO(file)) as container:
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])


async def test_the_events_of_a_streamed_answer(demo: SpeechEngine) -> None:
    asked = await ask(demo, task(streamed=True))
    kinds = [type(event) for event in asked.events]
    assert kinds == [m.Accepted, m.Audio, m.Audio, m.Audio, m.Usage, m.Done]
    assert [piece.transcript for piece in asked.pieces] == SENTENCES
    assert [(piece.index, piece.format, piece.sample_rate) for piece in asked.pieces] == [(0, "pcm", 24_000)] * 3
    assert all(len(piece.data) == 2 * piece.samples > 0 for piece in asked.pieces)


async def test_the_events_of_a_whole_answer(demo: SpeechEngine) -> None:
    asked = await ask(demo, task())
    assert [type(event) for event in asked.events] == [m.Accepted, m.Audio, m.Usage, m.Done]
    assert asked.transcript == TEXT
    assert asked.pieces[0].samples == len(asked.samples)


@pytest.mark.parametrize("format", ["pcm", "wav", "flac"])
async def test_streamed_and_whole_have_equal_samples(demo: SpeechEngine, format: str) -> None:
    plain = (await ask(demo, task())).samples
    whole, streamed = [await ask(demo, task(format=format, streamed=streamed)) for streamed in (False, True)]
    sound, pieces = [asked.samples if format == "pcm" else decoded(asked.file) for asked in (whole, streamed)]
    np.testing.assert_array_equal(pieces, sound)
    np.testing.assert_allclose(sound, plain, rtol=0, atol=format == "flac")  # it rounds in another way
    for asked in (whole, streamed):
        assert sum(piece.samples for piece in asked.pieces) == len(plain)
        assert asked.transcript == TEXT


async def test_another_sample_rate(demo: SpeechEngine) -> None:
    plain = await ask(demo, task())
    for streamed in (True, False):
        asked = await ask(demo, task(sample_rate=8000, streamed=streamed))
        assert len(asked.samples) == sum(piece.samples for piece in asked.pieces) == round(len(plain.samples) / 3)
        assert {piece.sample_rate for piece in asked.pieces} == {8000}
        assert asked.usage == plain.usage


@pytest.mark.parametrize("streamed", [True, False])
async def test_base64_is_that_of_the_file_and_each_piece_can_be_read_alone(demo: SpeechEngine, streamed: bool) -> None:
    plain = await ask(demo, task(format="mp3", streamed=streamed))
    coded = await ask(demo, task(format="mp3", streamed=streamed, base64=True))
    assert coded.file == base64.b64encode(plain.file)
    assert b"".join(base64.b64decode(piece.data) for piece in coded.pieces) == plain.file


async def test_a_very_short_text_is_heard(demo: SpeechEngine) -> None:
    for text in ("Hi.", "a", "5"):
        assert len((await ask(demo, task(text))).samples) > 2400


async def test_text_that_nothing_is_said_of_belongs_to_the_next_piece(demo: SpeechEngine) -> None:
    asked = await ask(demo, task("*** Hello.\n\n---\n\nYou.\n\n— * —", streamed=True))
    assert [piece.transcript for piece in asked.pieces] == ["*** Hello.\n\n", "---\n\nYou.\n\n", "— * —"]
    assert [piece.samples > 0 for piece in asked.pieces] == [True, True, False]


@pytest.mark.parametrize("format", ["pcm", "wav", "mp3", "opus", "aac", "flac"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_appended_text_that_never_came_is_an_empty_file(demo: SpeechEngine, format: str, streamed: bool) -> None:
    asked = Asked(task("", appended=True, format=format, streamed=streamed))
    asked.append(None)
    await demo.run(asked)
    assert [(piece.samples, piece.transcript) for piece in asked.pieces] == [(0, "")]
    assert (asked.usage.prompt_tokens, asked.usage.completion_tokens) == (0, 0)
    if format not in ("pcm", "mp3", "opus", "aac"):
        with av.open(BytesIO(asked.file)) as container:
            assert container.streams.audio[0].sample_rate == 24_000
            assert not list(container.decode(audio=0))


async def test_appended_text_sounds_as_the_whole_of_it(demo: SpeechEngine) -> None:
    asked = Asked(task("The fir", appended=True, streamed=True))
    for start in range(7, len(TEXT), 5):
        asked.append(TEXT[start : start + 5])
    asked.append(None)
    await demo.run(asked)
    assert asked.file == (await ask(demo, task())).file
    assert asked.transcript == TEXT


async def test_an_error_in_a_sentence_follows_what_was_said(demo: SpeechEngine) -> None:
    asked = Asked(task("Well, hello. ", appended=True, streamed=True))
    asked.append("And now")
    asked.append(b"\xff")
    with pytest.raises(EngineError, match="UTF-8"):
        await demo.run(asked)
    assert [piece.transcript for piece in asked.pieces] == ["Well, hello. "]
    assert not asked.of(m.Done)
