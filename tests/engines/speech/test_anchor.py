"""What a model without a voice goes on from."""

from __future__ import annotations

import numpy as np

from app.engines.speech.anchor import Anchor, anchor_of
from app.engines.speech.family import Manner, Reference


def manner(reference: Reference | None) -> Manner:
    return Manner(voice="", speed=1.0, reference=reference, sampling=None)


def test_the_first_sentence_that_sounds_is_kept() -> None:
    anchor = anchor_of(manner(None))
    assert anchor == Anchor()
    anchor.keep("silent", np.zeros(0, np.float32))
    assert anchor.sound is None
    anchor.keep("first", np.ones(3, np.float32))
    anchor.keep("second", np.zeros(3, np.float32))
    assert anchor.text == "first"
    assert anchor.sound is not None
    np.testing.assert_array_equal(anchor.sound, [1, 1, 1])


def test_a_recording_stays() -> None:
    anchor = anchor_of(manner(Reference(np.ones(2, np.float32), " so I said\n")))
    anchor.keep("first", np.zeros(3, np.float32))
    assert anchor.text == "so I said"
    assert anchor.sound is not None
    assert len(anchor.sound) == 2
