"""SpeechT5 and its vocoder say what the stock models say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from app.protocol.speechtask import SpeechCard, VoiceSample
from tests import tiny_speech
from tests.engines.speech.asking import Asked, ask, stage, started, task
from tests.engines.speech.parity import Voices, assert_heard, stock

LENGTHS = {"minlenratio": 1.0, "maxlenratio": 2.0}
"""A tiny model would stop at once, or never."""


def said(directory: Path, embedding: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    model = SpeechT5ForTextToSpeech.from_pretrained(directory).eval()
    vocoder = SpeechT5HifiGan.from_pretrained(directory / "vocoder").eval()
    ids = SpeechT5Tokenizer.from_pretrained(directory)("Hello there.", return_tensors="pt")["input_ids"]
    speaker = torch.from_numpy(embedding)[None]
    return stock(lambda: model.generate_speech(ids, speaker, vocoder=vocoder, **LENGTHS))


async def test_it_says_what_the_stock_model_says(tiny_voices: Voices) -> None:
    directory = tiny_voices("speecht5")
    mine = np.random.default_rng(0).normal(size=16).astype(np.float32)
    sample = VoiceSample(embedding=mine.tolist())
    named = {"speaker_embeddings": {"anna": "voice.npy"}, "default_sampling_params": LENGTHS}
    async with started(directory, **named) as engine:
        for _ in range(2):
            asked = await ask(engine, task("Hello there."))
            assert_heard(asked, [said(directory, np.load(directory / "voice.npy"))])
        assert_heard(await ask(engine, task("Hello there.", sample=sample)), [said(directory, mine)])


async def test_without_voices_of_its_own_it_asks_for_an_embedding(tiny_voices: Voices) -> None:
    async with started(tiny_voices("speecht5")) as engine:
        card = msgspec.json.decode(engine.capabilities.card, type=SpeechCard)  # type: ignore[attr-defined]
        assert (card.voices, card.cloning, card.embedding_size) == ([], ["embedding"], 16)
        with pytest.raises(EngineError, match="no voice of its own") as caught:
            await engine.run(Asked(task()))
    assert caught.value.failed.param == "voice"


async def test_the_vocoder_may_be_elsewhere_but_must_be_somewhere(tiny_voices: Voices, tmp_path: Path) -> None:
    directory, alone, vocoder = tiny_voices("speecht5"), tmp_path / "alone", tmp_path / "gan"
    shutil.copytree(directory, alone, ignore=shutil.ignore_patterns("vocoder"))
    shutil.copytree(directory / "vocoder", vocoder)
    with pytest.raises(ValueError, match="needs a SpeechT5HifiGan"):
        await SpeechEngine(stage(alone)).start()
    with pytest.raises(ValueError, match="vocoder must be a directory"):
        await SpeechEngine(stage(alone, vocoder=str(tmp_path / "nope"))).start()
    sample = VoiceSample(embedding=[0.5] * 16)
    async with started(alone, vocoder=str(vocoder), default_sampling_params=LENGTHS) as engine:
        heard = await ask(engine, task("Hello there.", sample=sample))
    assert_heard(heard, [said(directory, np.full(16, 0.5, np.float32))])


@pytest.mark.parametrize(
    ("numbers", "says"), [(np.zeros(4), "holds 4 numbers, not 16"), (None, r"is no .npy file that can be read")]
)
async def test_an_embedding_that_is_none(
    tiny_voices: Voices, tmp_path: Path, numbers: np.ndarray[Any, Any] | None, says: str
) -> None:
    file = tmp_path / "voice.npy"
    if numbers is None:
        file.write_bytes(b"no numpy")
    else:
        np.save(file, numbers)
    with pytest.raises(ValueError, match=says):
        await SpeechEngine(stage(tiny_voices("speecht5"), speaker_embeddings={"x": str(file)})).start()


async def test_a_model_without_digits_says_numbers_in_words(tmp_path: Path) -> None:
    tiny_speech.speecht5(tmp_path, letters="abcdefghijklmnopqrstuvwxyz .")
    sample = VoiceSample(embedding=[0.5] * 16)
    async with started(tmp_path, default_sampling_params=LENGTHS) as engine:
        digits, words = [await ask(engine, task(text, sample=sample)) for text in ("it is 42", "it is forty two")]
    assert digits.file == words.file
