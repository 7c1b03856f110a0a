"""VITS says what the stock model says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, VitsModel

from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from tests import tiny_speech
from tests.engines.speech.asking import Asked, ask, stage, started, task
from tests.engines.speech.parity import Voices, assert_heard, stock

TEXT, SENTENCES = "Hello there. How are you?", ("Hello there.", "How are you?")


def said(directory: Path, speaker: int | None = None, **attributes: Any) -> list[np.ndarray[Any, Any]]:
    """Each sentence by the stock model, of the seeds 7 and 8."""
    model, tokenizer = VitsModel.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)
    for name, value in attributes.items():
        setattr(model, name, value)

    def speak(sentence: str) -> torch.Tensor:
        sound: torch.Tensor = model(**tokenizer(sentence, return_tensors="pt"), speaker_id=speaker).waveform
        return sound

    return [stock(lambda sentence=sentence: speak(sentence), 7 + n) for n, sentence in enumerate(SENTENCES)]  # type: ignore[misc]


async def test_it_says_what_the_stock_model_says(tiny_voices: Voices) -> None:
    directory = tiny_voices("vits")
    async with started(directory) as engine:
        assert_heard(await ask(engine, task(TEXT)), said(directory))
        assert_heard(await ask(engine, task(TEXT, speed=2.0)), said(directory, speaking_rate=2.0))
        quiet = task(TEXT, extra={"noise_scale": 0.1, "noise_scale_duration": 0.2})
        assert_heard(await ask(engine, quiet), said(directory, noise_scale=0.1, noise_scale_duration=0.2))
        assert_heard(await ask(engine, task(TEXT)), said(directory))  # nothing of them is left


async def test_many_speakers_are_voices(tiny_voices: Voices) -> None:
    directory = tiny_voices("vits_many")
    async with started(directory, default_voice="1") as engine:
        assert_heard(await ask(engine, task(TEXT)), said(directory, speaker=1))
        assert_heard(await ask(engine, task(TEXT, voice="2")), said(directory, speaker=2))
        with pytest.raises(EngineError, match="no voice '3'"):
            await engine.run(Asked(task(TEXT, voice="3")))


async def test_characters_that_it_does_not_know_are_left_out(tiny_voices: Voices) -> None:
    async with started(tiny_voices("vits")) as engine:
        known, mixed = await ask(engine, task("hello")), await ask(engine, task("hello 好"))
        assert known.file == mixed.file
        with pytest.raises(EngineError, match="another language"):
            await engine.run(Asked(task("你好")))


@pytest.mark.parametrize(("setting", "package"), [("is_uroman", "uroman"), ("phonemize", "phonemizer")])
async def test_a_package_that_the_tokenizer_needs_is_asked_for(tmp_path: Path, setting: str, package: str) -> None:
    assert importlib.util.find_spec(package) is None
    tiny_speech.vits(tmp_path, **{setting: True})
    with pytest.raises(ValueError, match=f"needs the package {package}"):
        await SpeechEngine(stage(tmp_path)).start()
