"""A vocoder's stage: what it tells of itself, how it answers, what it refuses, and how it is stopped."""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.omni.code2wav.engine import Code2WavEngine
from app.protocol.speechtask import SpeechCard, VoiceSample
from tests.engines.omni.code2wav.decoding import GROUPS, Fed, ask, some_codes, stage, started, task, until
from tests.engines.speech.asking import details
from tests.tiny_omni import SPEAKERS

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_the_stage_tells_of_itself(qwen3: Path) -> None:
    engine = Code2WavEngine(stage(qwen3, default_voice="chelsie"))
    told = await engine.start()
    await engine.stop()
    assert (told.tasks, told.input_modalities, told.output_modalities) == (["code2wav"], [], ["audio"])
    card = msgspec.json.decode(told.card, type=SpeechCard)
    assert (card.family, card.voices, card.default_voice) == ("Qwen3-Omni", ["ethan", "chelsie"], "chelsie")
    assert (card.sample_rate, card.cloning, card.speeds) == (24_000, [], [])


async def test_the_default_voice_of_qwen2_5_is_the_one_of_transformers(shared: Code2WavEngine) -> None:
    codes = some_codes(20)
    unasked = await ask(shared, task(), codes)
    chelsie, ethan = [await ask(shared, task(voice=name.lower()), codes) for name in SPEAKERS]
    assert unasked.file == chelsie.file != ethan.file


# ---------------------------------------------------------------------------------------------------- answers


async def test_a_file_is_one_piece_and_a_stream_the_same_sound_in_several(shared: Code2WavEngine) -> None:
    codes = some_codes(100)
    whole = await ask(shared, task(), codes)
    streamed = await ask(shared, task(streamed=True), codes, each=1)
    assert [type(event) for event in whole.events] == [m.Accepted, m.Audio, m.Usage, m.Done]
    assert [piece.samples for piece in streamed.pieces] == [frames * 480 for frames in (12, 12, 24, 52)]
    assert len(whole.samples) == whole.pieces[0].samples == 100 * 480
    np.testing.assert_allclose(streamed.samples, whole.samples, atol=8)
    assert np.abs(whole.samples).max() > 1000


async def test_a_stream_begins_before_the_talker_has_ended(shared: Code2WavEngine) -> None:
    fed = Fed(task(streamed=True))
    running = asyncio.create_task(shared.run(fed))
    fed.feed(some_codes(35))
    await asyncio.sleep(0.2)
    assert fed.events == [m.Accepted()]
    assert shared.load().running == shared.load().waiting == 0  # it waits for the talker, which is no work
    fed.feed(some_codes(1))
    await fed.until(m.Audio)
    fed.feed(None)
    await asyncio.wait_for(running, 60)
    assert len(fed.samples) == 36 * 480


@pytest.mark.parametrize(
    ("form", "rate", "streamed"),
    [
        ("wav", 0, True),
        ("flac", 16_000, False),
        ("mp3", 0, True),
        ("opus", 48_000, False),
        ("aac", 0, True),
        ("pcm", 8000, True),
    ],
)
async def test_formats_and_rates(shared: Code2WavEngine, form: str, rate: int, streamed: bool) -> None:
    fed = await ask(shared, task(format=form, sample_rate=rate, streamed=streamed), some_codes(60))
    rate = rate or 24_000
    assert {piece.sample_rate for piece in fed.pieces} == {rate}
    assert sum(piece.samples for piece in fed.pieces) == 60 * 480 * rate // 24_000
    if form != "pcm":
        with av.open(io.BytesIO(fed.file)) as file:
            seconds = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
        assert seconds == pytest.approx(1.2, abs=0.15)


async def test_base64_is_that_of_the_file(shared: Code2WavEngine) -> None:
    plain, coded = [await ask(shared, task(streamed=True, base64=flag), some_codes(70)) for flag in (False, True)]
    assert base64.b64decode(coded.file) == plain.file


async def test_usage_counts_codec_frames(shared: Code2WavEngine, qwen3: Path) -> None:
    fed = await ask(shared, task(), some_codes(33))
    assert (fed.usage.prompt_tokens, fed.usage.completion_tokens) == (0, 33)
    assert details(fed.usage)["completion_tokens_details"] == {"text_tokens": 0, "audio_tokens": 33}
    async with started(qwen3) as engine:
        fed = await ask(engine, task(streamed=True), some_codes(33, GROUPS))
    assert fed.usage.completion_tokens == 33


@pytest.mark.parametrize("streamed", [False, True])
async def test_no_codes_are_a_file_without_samples(shared: Code2WavEngine, streamed: bool) -> None:
    fed = await ask(shared, task(format="wav", streamed=streamed), some_codes(0))
    assert (len(fed.file), fed.pieces[0].samples, fed.usage.completion_tokens) == (44, 0, 0)


async def test_seeds(shared: Code2WavEngine, qwen2_5: Path) -> None:
    codes = some_codes(20)
    seven, again, eight, none = [await ask(shared, task(seed=seed), codes) for seed in (7, 7, 8, None)]
    assert seven.file == again.file != eight.file
    async with started(qwen2_5, seed=8) as engine:
        assert (await ask(engine, task(seed=None), codes)).file == eight.file != none.file


async def test_a_long_file_lets_streams_go_first(shared: Code2WavEngine) -> None:
    """It gives way at each of its steps, though it came before them."""
    file = asyncio.create_task(ask(shared, task(), some_codes(700)))
    before = shared.load().steps
    await until(lambda: shared.load().steps > before)
    stream = await ask(shared, task(streamed=True), some_codes(20))
    assert stream.pieces
    assert not file.done()
    assert len((await file).samples) == 700 * 480


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
async def test_half_the_precision_is_the_same_sound_roughly(family: str, qwen2_5: Path, qwen3: Path) -> None:
    model, codes = (qwen2_5, some_codes(60)) if family == "qwen2_5" else (qwen3, some_codes(20, GROUPS))
    sounds = []
    for dtype in ("float32", "bfloat16"):
        async with started(model, dtype=dtype) as engine:
            sounds.append((await ask(engine, task(streamed=True), codes)).samples / 32768)
    difference = np.sqrt(np.square(sounds[1] - sounds[0]).mean())
    assert 0 < difference < 0.2 * np.sqrt(np.square(sounds[0]).mean())


async def test_many_at_once_sound_as_each_alone(shared: Code2WavEngine) -> None:
    """Of all lengths, streams and files."""
    tasks = [(task(seed=n, streamed=n % 2 == 0), some_codes(3 + 11 * n, seed=n)) for n in range(7)]
    together = await asyncio.gather(*(ask(shared, one, codes, each=5) for one, codes in tasks))
    for (one, codes), fed in zip(tasks, together, strict=True):
        alone = await ask(shared, one, codes)
        np.testing.assert_allclose(fed.samples, alone.samples, atol=2)
    assert shared.load().running == shared.load().waiting == 0


# ---------------------------------------------------------------------------------------------------- ends


async def test_cancelling_ends_the_work_at_the_next_step(shared: Code2WavEngine) -> None:
    fed = Fed(task())
    fed.feed(some_codes(5000))
    fed.feed(None)
    running = asyncio.create_task(shared.run(fed))
    before = shared.load().steps
    await until(lambda: shared.load().steps >= before + 3)
    assert shared.load().running == 1
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: not shared.load().running)
    assert shared.load().steps < before + 30  # a whole one has 144 of the flow alone
    assert not fed.pieces


async def test_what_is_cancelled_in_the_line_never_begins(shared: Code2WavEngine) -> None:
    first = asyncio.create_task(ask(shared, task(), some_codes(600)))
    before = shared.load().steps
    await until(lambda: shared.load().steps > before)
    second = asyncio.create_task(ask(shared, task(), some_codes(3000)))
    await until(lambda: shared.load().waiting)
    second.cancel()
    await asyncio.wait([second])
    assert shared.load().waiting == 0
    assert len((await first).samples) == 600 * 480


async def test_a_client_that_does_not_read_is_waited_for(shared: Code2WavEngine) -> None:
    fed = Fed(task(streamed=True))
    fed.funded.clear()
    fed.feed(some_codes(60))
    fed.feed(None)
    running = asyncio.create_task(shared.run(fed))
    await asyncio.sleep(0.2)
    assert not fed.pieces
    assert shared.load().running == shared.load().waiting == 0
    fed.funded.set()
    await asyncio.wait_for(running, 60)
    assert len(fed.samples) == 60 * 480


async def test_stopping_ends_what_is_decoded(qwen2_5: Path) -> None:
    async with started(qwen2_5) as engine:
        running = asyncio.create_task(ask(engine, task(), some_codes(3000)))
        await until(lambda: engine.load().steps)
        await asyncio.wait_for(engine.stop(), 10)
        result = (await asyncio.gather(running, return_exceptions=True))[0]
        assert isinstance(result, BaseException)


async def test_a_talker_that_says_nothing_more_is_given_up(qwen2_5: Path) -> None:
    async with started(qwen2_5, input_timeout_s=0.2) as engine:
        fed = Fed(task(streamed=True))
        fed.feed(some_codes(5))
        with pytest.raises(EngineError, match="no further codec frames came for") as caught:
            await asyncio.wait_for(engine.run(fed), 30)
    assert (caught.value.failed.status, caught.value.failed.code) == (504, m.INPUT_TIMEOUT)


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"speed": 1.5}, "speed", "one speed"),
        ({"voice": "Chelsy"}, "voice", "did you mean 'Chelsie'"),
        ({"instructions": "whisper"}, "instructions", "no instructions"),
        ({"format": "mp3", "sample_rate": 23_000}, "sample_rate", "mp3 has the sample rates"),
        ({"sample": VoiceSample(data=b"x")}, "ref_audio", "cannot imitate a recording"),
    ],
)
async def test_what_the_model_has_not_is_refused(
    shared: Code2WavEngine, fields: dict[str, Any], param: str, says: str
) -> None:
    fed = Fed(task(**fields))
    with pytest.raises(EngineError, match=says) as caught:
        await shared.run(fed)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)
    assert not fed.events


async def test_what_is_meant_for_the_talker_is_no_concern_of_the_vocoder(shared: Code2WavEngine) -> None:
    assert (await ask(shared, task(language="en", extra={"temperature": 0.5}), some_codes(3))).pieces


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"codes": Tensor("int64", (1,), memoryview(bytes(8)))},
        {"codes": Tensor("int32", (1, 4), memoryview(bytes(16)))},
        {"codes": Tensor("int32", (1,), memoryview(np.int32(4096).tobytes()))},
        {"codes": Tensor("int32", (1,), memoryview(np.int32(-1).tobytes()))},
    ],
)
async def test_what_are_no_codes_of_the_model_fails_that_request_only(
    shared: Code2WavEngine, tensors: dict[str, Tensor]
) -> None:
    fed = Fed(task())
    fed.feed_tensors(tensors)
    with pytest.raises(EngineError, match="the talker and the vocoder do not fit") as caught:
        await shared.run(fed)
    assert caught.value.failed.status == 500
    assert (await ask(shared, task(), some_codes(3))).pieces


async def test_before_it_has_started_it_says_so_and_stops_at_once(tmp_path: Path) -> None:
    engine = Code2WavEngine(stage(tmp_path))
    with pytest.raises(EngineError, match="loading"):
        await engine.run(Fed(task()))
    assert engine.load() == m.Load()
    await engine.stop()


async def test_another_kind_of_request_and_calls_are_refused(shared: Code2WavEngine) -> None:
    fed = Fed(task())
    fed.kind = "speech"
    with pytest.raises(EngineError, match="does not serve 'speech'"):
        await shared.run(fed)
    with pytest.raises(EngineError, match="has no metrics"):
        await shared.call("metrics", b"")
