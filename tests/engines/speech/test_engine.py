"""The engine starts with what it can do, or says why it cannot; it stops at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from app.protocol.speechtask import SpeechCard
from tests.engines.speech.asking import TEXT, Asked, stage, started, task


async def test_what_the_stage_tells_of_itself() -> None:
    async with started() as engine:
        told = engine.capabilities  # type: ignore[attr-defined]
    assert (told.tasks, told.input_modalities, told.output_modalities) == (["speech"], ["text"], ["audio"])
    card = msgspec.json.decode(told.card, type=SpeechCard)
    assert (card.family, card.voices, card.default_voice, card.sample_rate) == ("hibari", ["heart"], "heart", 24_000)
    assert (card.cloning, card.speeds, card.languages) == ([], [0.25, 2.0], ["en"])


@pytest.mark.parametrize(
    ("engine_args", "says"),
    [
        ({"default_voice": "hart"}, "default_voice: the model has no voice 'hart'; did you mean 'heart'?"),
        ({"default_sampling_params": {"top_k": 1}}, "default_sampling_params: hibari models have no parameter 'top_k'"),
    ],
)
async def test_a_stage_that_cannot_be_does_not_start(engine_args: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        await SpeechEngine(stage(**engine_args)).start()


async def test_a_model_that_speaks_one_at_a_time_cannot_be_asked_for_more(tiny_voices: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="one sentence at a time; use more replicas"):
        await SpeechEngine(stage(tiny_voices("vits"), max_num_seqs=2)).start()


async def test_before_it_has_started_it_says_so_and_stops_at_once() -> None:
    engine = SpeechEngine(stage())
    with pytest.raises(EngineError, match="loading"):
        await engine.run(Asked(task()))
    assert engine.load() == m.Load()
    await engine.stop()


async def test_stopping_ends_what_is_spoken() -> None:
    async with started(max_num_seqs=1) as engine:
        asked = Asked(task(TEXT * 20, streamed=True))
        running = asyncio.create_task(engine.run(asked))
        await asked.until(m.Audio)
        await engine.stop()
        result = (await asyncio.gather(running, return_exceptions=True))[0]
        assert isinstance(result, BaseException)
    assert not asked.of(m.Done)
