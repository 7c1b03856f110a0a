"""Every family keeps the contract, in half precision too."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile

from app.engines.speech.detect import load_family
from app.engines.speech.options import SpeechOptions
from app.protocol.speechtask import SpeechCard, VoiceSample
from tests.engines.speech.asking import ask, started, task
from tests.engines.speech.parity import Voices

EXTRA: dict[str, dict[str, Any]] = {
    "vits": {},
    "speecht5": {"minlenratio": 1.0, "maxlenratio": 2.0},
    "bark": {"semantic_max_new_tokens": 8},
    "csm": {"max_new_tokens": 3},
    "dia": {"max_new_tokens": 8},
}


def sample_for(card: SpeechCard) -> VoiceSample:
    if "embedding" in card.cloning:
        return VoiceSample(embedding=[0.5] * card.embedding_size)
    file = BytesIO()
    soundfile.write(file, np.sin(np.arange(66_150) / 20) / 2, 44_100, format="WAV")
    return VoiceSample(data=file.getvalue(), text="so I said")


@pytest.mark.parametrize("kind", EXTRA)
async def test_half_precision(tiny_voices: Voices, kind: str) -> None:
    async with started(tiny_voices(kind), dtype="bfloat16", default_sampling_params=EXTRA[kind]) as engine:
        card = msgspec.json.decode(engine.capabilities.card, type=SpeechCard)  # type: ignore[attr-defined]
        samples = [sample_for(card)] if card.cloning else []
        for sample in [None, *samples] if card.default_voice else samples:
            sound = (await ask(engine, task("Hello there.", sample=sample))).samples
            assert len(sound) > 500
            assert np.abs(sound).max() > 50


@pytest.mark.parametrize("kind", EXTRA)
def test_what_a_family_says_of_itself_fits_together(tiny_voices: Voices, kind: str) -> None:
    synthesizer = load_family(str(tiny_voices(kind)), SpeechOptions(device="cpu"))
    card = synthesizer.card
    assert card.family == kind
    assert card.default_voice in (card.voices or [""])
    assert card.voices or card.cloning
    assert ("embedding" in card.cloning) == (card.embedding_size > 0)
    assert card.sample_rate in (16_000, 24_000, 44_100)
    assert 0 < synthesizer.token_s <= 0.1
    assert 100 <= synthesizer.max_sentence_chars <= 400
    assert all(field.default is None for field in msgspec.structs.fields(synthesizer.sampling))
