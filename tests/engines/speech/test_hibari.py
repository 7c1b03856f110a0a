"""The demo's voice speaks for real."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from tests.engines.speech.asking import TEXT, ask, details, task

RATE = 24_000


async def test_it_sounds_like_speech(demo: SpeechEngine) -> None:
    sound = (await ask(demo, task())).samples / 32768
    assert 4 < len(sound) / RATE < 9  # 84 characters
    assert 0.1 < np.abs(sound).max() < 1
    power = np.abs(np.fft.rfft(sound)) ** 2
    hertz = np.fft.rfftfreq(len(sound), 1 / RATE)
    assert power[(hertz > 80) & (hertz < 4000)].sum() > 0.9 * power.sum()
    loudness = np.sqrt((sound[: len(sound) // 480 * 480].reshape(-1, 480) ** 2).mean(1))
    assert (loudness > 0.01).mean() > 0.5  # of frames of 20 ms; the others are pauses
    assert (loudness < 0.001).any()


async def test_it_says_what_the_wheel_says(demo: SpeechEngine) -> None:
    stock = Hibari()("The first sentence is short.", seed=7)
    heard = await ask(demo, task("The first sentence is short."))
    np.testing.assert_array_equal(heard.samples, np.rint(np.clip(stock, -1, 1) * 32767).astype("<i2"))


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0])
async def test_speed_is_real(demo: SpeechEngine, speed: float) -> None:
    usual, changed = await ask(demo, task()), await ask(demo, task(speed=speed))
    assert len(changed.samples) * speed == pytest.approx(len(usual.samples), rel=0.1)


async def test_equal_seeds_are_equal_sounds_and_others_are_not(demo: SpeechEngine) -> None:
    first, again, other = [await ask(demo, task(seed=seed)) for seed in (1, 1, 2)]
    assert first.file == again.file
    assert first.file != other.file
    unsaid, again = [await ask(demo, task(seed=None)) for _ in range(2)]
    assert unsaid.file == again.file
    assert (await ask(demo, task(seed=-5))).file  # any integer is a seed


async def test_usage_counts_phonemes_and_pieces_of_50_ms(demo: SpeechEngine) -> None:
    asked = await ask(demo, task())
    usage = asked.usage
    seconds = len(asked.samples) / RATE
    assert usage.completion_tokens == int(np.ceil(seconds * 20))
    assert len(TEXT) * 0.6 < usage.prompt_tokens < len(TEXT) * 1.5
    assert details(usage) == {
        "prompt_tokens_details": {"text_tokens": usage.prompt_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"text_tokens": 0, "audio_tokens": usage.completion_tokens},
    }


async def test_a_long_text_takes_as_long_as_its_sentences(demo: SpeechEngine) -> None:
    """None is cut or hurried: this is more than a model says at once."""
    sentence = "This is one sentence of a long text that nobody will ever want to hear to its end. "
    count = 20
    whole = await ask(demo, task(sentence * count))
    one = await ask(demo, task(sentence))
    assert len(whole.samples) == pytest.approx(len(one.samples) * count, rel=0.001)


async def test_a_text_in_letters_that_it_does_not_know_is_refused(demo: SpeechEngine) -> None:
    with pytest.raises(EngineError, match="another language") as caught:
        await ask(demo, task("你好"))
    assert (caught.value.failed.status, caught.value.failed.param) == (400, "input")


@pytest.mark.parametrize("word", ["a1" * 200, "-a" * 200, "aB" * 200])
async def test_a_word_of_many_parts_takes_no_minute(demo: SpeechEngine, word: str) -> None:
    async with asyncio.timeout(30):
        assert len((await ask(demo, task(word))).samples) > RATE


@pytest.mark.parametrize("text", ["9" * 300, "1,000" * 20, "İstanbul and İzmir are cities."])
async def test_what_the_wheel_cannot_read_is_said_all_the_same(demo: SpeechEngine, text: str) -> None:
    assert len((await ask(demo, task(text))).samples) > RATE


def test_it_writes_nothing_at_home(tmp_path: Path) -> None:
    program = (
        "from app.engines.speech.hibari import load; from app.engines.speech.options import SpeechOptions; "
        "load('demo', SpeechOptions())"
    )
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | places
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, check=True)
    assert list(tmp_path.iterdir()) == [], "onnxruntime leaves a device id where its telemetry is on"
