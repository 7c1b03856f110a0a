"""Requests side by side: they take turns, end when nobody listens, and none harms another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.speech.engine import SpeechEngine
from app.protocol.speechtask import VoiceReport, VoiceSample, encode_sample
from tests.engines.speech.asking import Asked, ask, started, task

LONG = "This is one sentence of a text that is very long indeed. " * 40


async def cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def quiet(engine: SpeechEngine) -> None:
    """Wait until nothing runs, then see that no step is made any more."""
    async with asyncio.timeout(10):
        while engine.load().running or engine.load().waiting:  # noqa: ASYNC110 - it changes on another thread
            await asyncio.sleep(0.01)
    steps = engine.load().steps
    await asyncio.sleep(0.1)
    assert engine.load().steps == steps


async def test_the_first_sound_leaves_before_the_text_has_ended(demo: SpeechEngine) -> None:
    asked = Asked(task("It begins here. And it", appended=True, streamed=True))
    running = asyncio.create_task(demo.run(asked))
    await asked.until(m.Audio)
    assert demo.load().steps > 0
    asked.append(" ends here.")
    asked.append(None)
    await running
    assert [piece.transcript for piece in asked.pieces] == ["It begins here. ", "And it ends here."]


async def test_a_long_text_does_not_keep_a_short_one_waiting(demo: SpeechEngine) -> None:
    long, short = Asked(task(LONG, streamed=True)), Asked(task("Me too."))
    reading = asyncio.create_task(demo.run(long))
    await long.until(m.Audio)
    await demo.run(short)
    assert len(long.pieces) < 10
    assert not reading.done()
    await cancelled(reading)


async def test_sound_does_not_depend_on_what_else_is_spoken() -> None:
    async with started(max_num_seqs=2) as engine:
        alone = [await ask(engine, task(seed=seed)) for seed in range(3)]
        crowd = await asyncio.gather(*(ask(engine, task(seed=seed)) for seed in range(3)))
    assert [asked.file for asked in crowd] == [asked.file for asked in alone]


async def test_cancelled_work_ends_at_the_next_sentence(demo: SpeechEngine) -> None:
    asked = Asked(task(LONG, streamed=True))
    running = asyncio.create_task(demo.run(asked))
    await asked.until(m.Audio)
    await cancelled(running)
    await quiet(demo)
    assert len(asked.pieces) < 10
    assert len((await ask(demo, task("Still here."))).samples) > 0


async def test_cancelled_work_ends_at_the_next_step_of_the_model(tiny_voices: Callable[[str], Path]) -> None:
    """Two thousand frames would take a minute."""
    async with started(tiny_voices("csm"), default_sampling_params={"max_new_tokens": 1900}) as engine:
        asked = Asked(task("Hello."))
        running = asyncio.create_task(engine.run(asked))
        async with asyncio.timeout(60):
            while engine.load().steps < 20:  # noqa: ASYNC110 - it changes on another thread
                await asyncio.sleep(0.01)
        assert engine.load().running == 1
        await cancelled(running)
        await quiet(engine)
        assert not asked.pieces
        assert len((await ask(engine, task("Hi.", extra={"max_new_tokens": 3}))).samples) > 0


async def test_a_request_that_waits_for_text_is_no_work(demo: SpeechEngine) -> None:
    """Else the engine would be taken for stuck."""
    asked = Asked(task("First. Then", appended=True, streamed=True))
    running = asyncio.create_task(demo.run(asked))
    await asked.until(m.Audio)
    await quiet(demo)
    assert not running.done()
    await cancelled(running)


async def test_a_client_that_does_not_read_is_not_spoken_to(demo: SpeechEngine) -> None:
    asked = Asked(task(LONG, streamed=True))
    asked.funded.clear()
    running = asyncio.create_task(demo.run(asked))
    await asked.until(m.Accepted)
    await quiet(demo)
    assert not asked.pieces
    asked.funded.set()
    await asked.until(m.Audio)
    await cancelled(running)


async def test_input_that_stays_away_fails_that_request_only() -> None:
    async with started(max_num_seqs=1, input_timeout_s=0.2) as engine:
        asked, other = Asked(task("", appended=True)), Asked(task(LONG[:600]))
        results = await asyncio.gather(engine.run(asked), engine.run(other), return_exceptions=True)
    assert isinstance(results[0], EngineError)
    assert results[0].failed.status == 504
    assert results[1] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"text": "?"}, "input"),
        ({"speed": 3.0}, "speed"),
        ({"extra": {"temperature": 1.0}}, "temperature"),
        ({"sample": VoiceSample(data=b"RIFF")}, "ref_audio"),
        ({"sample": VoiceSample(embedding=[1.0], param="speaker_embedding")}, "speaker_embedding"),
        ({"format": "mp3", "sample_rate": 1234}, "sample_rate"),
    ],
)
async def test_what_cannot_be_is_refused_before_accepted(demo: SpeechEngine, fields: dict, param: str) -> None:  # type: ignore[type-arg]
    asked = Asked(task(**fields))
    with pytest.raises(EngineError) as caught:
        await demo.run(asked)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)
    assert asked.events == []


async def test_a_malformed_task_is_refused(demo: SpeechEngine) -> None:
    asked = Asked(task())
    asked.body = b"\x91"
    with pytest.raises(EngineError, match="malformed") as caught:
        await demo.run(asked)
    assert caught.value.failed.status == 400


async def test_a_voice_is_judged_before_it_is_kept(demo: SpeechEngine, tiny_voices: Callable[[str], Path]) -> None:
    sample = VoiceSample(embedding=[0.5] * 16, param="speaker_embedding")
    with pytest.raises(EngineError, match="take no speaker embedding"):
        await demo.call("check_voice", encode_sample(sample))
    async with started(tiny_voices("speecht5")) as engine:
        report = msgspec.json.decode(await engine.call("check_voice", encode_sample(sample)), type=VoiceReport)
        assert report.seconds == 0
        with pytest.raises(EngineError, match="must have 16 numbers; it has 2"):
            await engine.call("check_voice", encode_sample(VoiceSample(embedding=[1.0, 2.0])))
    with pytest.raises(EngineError) as caught:
        await demo.call("voices", b"{}")
    assert caught.value.failed.status == 404
