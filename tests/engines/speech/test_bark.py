"""Bark says what the stock model says, in the voice of a preset."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from transformers import BarkModel, BarkProcessor

from app.protocol.speechtask import SpeechCard
from tests import tiny_speech
from tests.engines.speech.asking import ask, started, task
from tests.engines.speech.parity import Voices, assert_heard, stock


def said(directory: Path, preset: str | None, **arguments: Any) -> np.ndarray[Any, Any]:
    model, processor = BarkModel.from_pretrained(directory).eval(), BarkProcessor.from_pretrained(directory)
    inputs = processor("Hello there.", voice_preset=preset)
    return stock(lambda: model.generate(**inputs, **arguments))


async def test_it_says_what_the_stock_model_says(tiny_voices: Voices) -> None:
    directory = tiny_voices("bark")
    first, favourite = tiny_speech.PRESETS
    async with started(directory) as engine:
        card = msgspec.json.decode(engine.capabilities.card, type=SpeechCard)  # type: ignore[attr-defined]
        assert (card.voices, card.default_voice) == ([first, favourite], favourite)
        plain = await ask(engine, task("Hello there."))
        assert_heard(plain, [said(directory, favourite)])
        other = await ask(engine, task("Hello there.", voice=first))
        assert_heard(other, [said(directory, first)])
        assert plain.file != other.file != (await ask(engine, task("Hello there.", voice=first, seed=8))).file
        shorter = task("Hello there.", extra={"semantic_max_new_tokens": 8, "temperature": 0.5})
        expected = said(directory, favourite, semantic_max_new_tokens=8, temperature=0.5)
        assert_heard(await ask(engine, shorter), [expected])
        frame = 320  # samples
        assert plain.usage.completion_tokens == len(plain.samples) / frame


async def test_presets_whose_files_were_not_downloaded_are_no_voices(tiny_voices: Voices, tmp_path: Path) -> None:
    directory, (first, second) = tiny_voices("bark"), tiny_speech.PRESETS
    shutil.copytree(directory, tmp_path / "bark")
    (tmp_path / f"bark/speaker_embeddings/{second}_fine_prompt.npy").unlink()
    async with started(tmp_path / "bark") as engine:
        card = msgspec.json.decode(engine.capabilities.card, type=SpeechCard)  # type: ignore[attr-defined]
        assert (card.voices, card.default_voice) == ([first], first)
    shutil.rmtree(tmp_path / "bark/speaker_embeddings")
    async with started(tmp_path / "bark") as engine:
        assert_heard(await ask(engine, task("Hello there.")), [said(directory, None)])
