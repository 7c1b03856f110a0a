"""Dia says what the stock model says, and goes on from what it has heard."""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from transformers import DacModel, DiaFeatureExtractor, DiaForConditionalGeneration, DiaProcessor, DiaTokenizer

from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from app.protocol.speechtask import VoiceSample
from tests.engines.speech.asking import Asked, ask, stage, started, task
from tests.engines.speech.parity import Voices, assert_heard, stock

FRAMES = {"max_new_tokens": 12}
CODES = {"delay_pattern": [0, 1, 2, 3], "bos_token_id": 18, "eos_token_id": 16, "pad_token_id": 17}
HEARD = (np.sin(np.arange(66_150) / 20) / 2).astype(np.float32)
"""One and a half seconds."""


class Stock:
    """The model as its documentation runs it."""

    def __init__(self, directory: Path) -> None:
        self.model = DiaForConditionalGeneration.from_pretrained(directory).eval()
        self.processor = DiaProcessor(
            DiaFeatureExtractor.from_pretrained(directory),
            DiaTokenizer.from_pretrained(directory),
            DacModel.from_pretrained(directory / "vocoder").eval(),
        )
        self.last = torch.zeros(0)

    def says(self, text: str, sound: np.ndarray[Any, Any] | None = None, seed: int = 7, **arguments: Any) -> Any:
        heard = {} if sound is None else {"audio": sound, "sampling_rate": 44_100}
        inputs = self.processor(text=[text], padding=True, return_tensors="pt", **heard, **CODES)

        def call() -> torch.Tensor:
            codes = self.model.generate(**inputs, **FRAMES | arguments)
            length = None
            if sound is not None:
                length = self.processor.get_audio_prompt_len(inputs["decoder_attention_mask"], **CODES)
            self.last = self.processor.batch_decode(codes, audio_prompt_len=length, **CODES)[0]
            return self.last

        return stock(call, seed)


async def test_it_says_what_the_stock_model_says(tiny_voices: Voices) -> None:
    directory = tiny_voices("dia")
    reference = Stock(directory)
    async with started(directory, default_sampling_params=FRAMES) as engine:
        plain = await ask(engine, task("Hello."))
        assert_heard(plain, [reference.says("[S1] Hello.")])
        assert plain.usage.completion_tokens == len(plain.samples) / 512
        other = await ask(engine, task("Hello.", voice="S2"))
        assert_heard(other, [reference.says("[S2] Hello.")])
        assert plain.file != other.file
        warm = {"temperature": 3.0, "guidance_scale": 1.0}
        assert_heard(await ask(engine, task("Hello.", extra=warm)), [reference.says("[S1] Hello.", **warm)])
        with pytest.raises(EngineError, match="temperature: Expected `float` >= 1"):
            await engine.run(Asked(task("Hello.", extra={"temperature": 0.5})))


async def test_a_dialogue_keeps_its_speakers_and_its_voices(tiny_voices: Voices) -> None:
    """The first sentence is what the others go on from; who spoke last speaks on."""
    directory = tiny_voices("dia")
    reference = Stock(directory)
    expected = [reference.says("[S2] Hi.")]
    first = reference.last.numpy()
    expected.append(reference.says("[S2] Hi. [S1] Yes?", first, seed=8))
    expected.append(reference.says("[S2] Hi. [S1] No.", first, seed=9))
    async with started(directory, default_sampling_params=FRAMES) as engine:
        assert_heard(await ask(engine, task("[S2] Hi. [S1] Yes? No.")), expected)


async def test_it_goes_on_from_a_recording(tiny_voices: Voices) -> None:
    directory = tiny_voices("dia")
    file = BytesIO()
    soundfile.write(file, HEARD, 44_100, "FLOAT", format="WAV")
    sample = VoiceSample(data=file.getvalue(), text="so I said")
    expected = Stock(directory).says("[S1] so I said [S1] Hello.", HEARD)
    async with started(directory, default_sampling_params=FRAMES) as engine:
        assert_heard(await ask(engine, task("Hello.", sample=sample)), [expected])


async def test_a_codec_that_is_nowhere_is_asked_for(tiny_voices: Voices, tmp_path: Path) -> None:
    shutil.copytree(tiny_voices("dia"), tmp_path / "dia", ignore=shutil.ignore_patterns("vocoder"))
    with pytest.raises(ValueError, match="needs the DAC"):
        await SpeechEngine(stage(tmp_path / "dia")).start()
