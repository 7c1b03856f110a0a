"""CSM says what the stock model says, and goes on from what it has heard."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from transformers import AutoProcessor, CsmForConditionalGeneration

from app.engines.base import EngineError
from app.protocol.speechtask import VoiceSample
from tests.engines.speech.asking import Asked, ask, details, started, task
from tests.engines.speech.parity import Voices, assert_heard, stock

FRAMES = {"max_new_tokens": 5}
HEARD = (np.sin(np.arange(36_000) / 20) / 2).astype(np.float32)
"""One and a half seconds."""


def turn(text: str, sound: np.ndarray[Any, Any] | None = None, role: str = "0") -> dict[str, Any]:
    said = [{"type": "text", "text": text}]
    return {"role": role, "content": said if sound is None else [*said, {"type": "audio", "path": sound}]}


def said(directory: Path, *turns: dict[str, Any], seed: int = 7, **arguments: Any) -> np.ndarray[Any, Any]:
    model, processor = CsmForConditionalGeneration.from_pretrained(directory), AutoProcessor.from_pretrained(directory)
    inputs = processor.apply_chat_template(list(turns), tokenize=True, return_dict=True)
    return stock(lambda: model.eval().generate(**inputs, output_audio=True, **FRAMES | arguments)[0], seed)


def recording() -> VoiceSample:
    file = BytesIO()
    soundfile.write(file, HEARD, 24_000, "FLOAT", format="WAV")
    return VoiceSample(data=file.getvalue(), text="so I said")


async def test_it_says_what_the_stock_model_says(tiny_voices: Voices) -> None:
    directory = tiny_voices("csm")
    async with started(directory, default_sampling_params=FRAMES) as engine:
        plain = await ask(engine, task("Hello."))
        assert_heard(plain, [said(directory, turn("Hello."))])
        assert plain.usage.completion_tokens == FRAMES["max_new_tokens"]
        other = await ask(engine, task("Hello.", voice="3"))
        assert_heard(other, [said(directory, turn("Hello.", role="3"))])
        assert plain.file != other.file != (await ask(engine, task("Hello.", seed=8))).file


async def test_arguments_of_one_request_do_not_stick_to_the_next(tiny_voices: Voices) -> None:
    """generate() writes those of the depth decoder into the model."""
    directory, cold = tiny_voices("csm"), {"depth_decoder_temperature": 0.2, "temperature": 0.5}
    async with started(directory, default_sampling_params=FRAMES) as engine:
        assert_heard(await ask(engine, task("Hello.", extra=cold)), [said(directory, turn("Hello."), **cold)])
        assert_heard(await ask(engine, task("Hello.")), [said(directory, turn("Hello."))])


async def test_it_goes_on_from_a_recording(tiny_voices: Voices) -> None:
    directory = tiny_voices("csm")
    async with started(directory, default_sampling_params=FRAMES) as engine:
        assert "audio" in engine.capabilities.input_modalities  # type: ignore[attr-defined]
        asked = await ask(engine, task("Hello. You.", sample=recording()))
        anchor = turn("so I said", HEARD)
        expected = [said(directory, anchor, turn("Hello.")), said(directory, anchor, turn("You."), seed=8)]
        assert_heard(asked, expected)
        counted = details(asked.usage)["prompt_tokens_details"]
        assert counted["audio_tokens"] == 19  # frames of 80 ms
        assert counted["text_tokens"] > len("so I saidHello.so I saidYou.")
        with pytest.raises(EngineError, match="transcript"):
            await engine.run(Asked(task("Hello.", sample=VoiceSample(data=recording().data))))


async def test_it_goes_on_from_its_own_first_sentence(tiny_voices: Voices) -> None:
    """Else every sentence would be somebody else's."""
    directory = tiny_voices("csm")
    model, processor = CsmForConditionalGeneration.from_pretrained(directory), AutoProcessor.from_pretrained(directory)
    first: list[np.ndarray[Any, Any]] = []

    def speak() -> Any:
        inputs = processor.apply_chat_template([turn("Hello.")], tokenize=True, return_dict=True)
        sound = model.eval().generate(**inputs, output_audio=True, **FRAMES)[0]
        first.append(sound.numpy())
        return sound

    expected = [stock(speak)]
    expected += [
        said(directory, turn("Hello.", first[0]), turn(text), seed=seed) for text, seed in (("You.", 8), ("Me.", 9))
    ]
    async with started(directory, default_sampling_params=FRAMES) as engine:
        assert_heard(await ask(engine, task("Hello. You. Me.")), expected)
