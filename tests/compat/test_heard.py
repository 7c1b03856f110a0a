"""The demo's voice is understood, in every format, whole and streamed; and it is the same voice."""

from __future__ import annotations

import numpy as np
import pytest

from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.compat.heard import UNDERSTOOD, WAYS, error_rate, played, speak
from tests.hearing import SENTENCES
from tests.servers import Server

SHARES = np.array_split(np.array(SENTENCES), len(WAYS))
"""Each way gets sentences of its own: all are said once. Every way with every sentence is in the soak."""


@pytest.mark.parametrize(("way", "sentences"), list(zip(WAYS, SHARES, strict=True)))
def test_a_recogniser_understands_it(
    voice: Server, way: tuple[SpeechFormat, bool], sentences: np.ndarray[tuple[int], np.dtype[np.str_]]
) -> None:
    format, streamed = way
    file = speak(voice, " ".join(sentences), format, streamed=streamed)
    assert error_rate(sentences, file, format) <= UNDERSTOOD


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_streamed_and_whole_sound_have_equal_samples(voice: Server, format: SpeechFormat) -> None:
    """An MP3 stream cannot say where in its last frame the sound ends: less than a frame of silence follows there."""
    text = " ".join(SENTENCES[:3])
    whole, streamed = (played(speak(voice, text, format, streamed=streamed), format) for streamed in (False, True))
    assert np.array_equal(streamed[: len(whole)], whole)
    rest = streamed[len(whole) :]
    assert len(rest) < (576 if format == "mp3" else 1)
    assert np.abs(rest).max(initial=0) < 0.01
