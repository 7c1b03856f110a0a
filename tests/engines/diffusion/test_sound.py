"""Sound of a prompt: what the stock pipeline makes of it, as a file; and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion import soundcall
from app.engines.diffusion.batching import Sounded
from app.engines.diffusion.offer import Offer
from app.engines.diffusion.sound import Samples, samples, sound_of
from app.protocol.soundtask import SoundTask, encode_task
from tests.engines.diffusion.asking import OTHER, PROMPT, Asked, Directories, Pipelines, started, task
from tests.engines.diffusion.running import Forwards, Recorder, draw, offer_of, runner_of

RATE = 16_000
LONGEST = 128 * 256 / RATE
"""Seconds of the tiny pipeline's sound."""


def wanted(**fields: Any) -> SoundTask:
    """A short one: a fifth of a second, three steps, seed 7."""
    return SoundTask(**{"prompt": PROMPT, "seconds": 0.2, "seed": 7, "num_inference_steps": 3} | fields)


def stock(pipe: Any, seed: int = 7, **arguments: Any) -> Samples:
    """What the pipeline makes for its users."""
    call = {"prompt": PROMPT, "audio_end_in_s": 0.2, "num_inference_steps": 3} | arguments
    sound: Samples = pipe(**call, generator=torch.Generator("cpu").manual_seed(seed)).audios[0].T.float().numpy()
    return sound


def made(recorder: Recorder) -> Samples:
    assert isinstance(recorder.outcome, Sounded), recorder.outcome
    return recorder.outcome.samples


def decoded(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """The samples of a file, (n, channels), -1..1."""
    with av.open(BytesIO(data)) as file:
        frames = [frame.to_ndarray().reshape(-1, frame.layout.nb_channels) for frame in file.decode(audio=0)]
    return np.concatenate(frames) / 32767


@pytest.fixture
def offer(tiny_pipeline: Pipelines) -> Offer:
    return offer_of(tiny_pipeline("stableaudio"))


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {}),
        ({"seconds": None}, {"audio_end_in_s": None}),
        ({"start": 0.5}, {"audio_start_in_s": 0.5, "audio_end_in_s": 0.7}),
        ({"negative_prompt": OTHER, "guidance_scale": 4.0}, {"negative_prompt": OTHER, "guidance_scale": 4.0}),
        ({"extra": {"eta": 0.5}, "num_inference_steps": 2}, {"eta": 0.5, "num_inference_steps": 2}),
    ],
)
def test_the_sound_is_that_of_the_stock_pipeline(
    fields: dict[str, Any], arguments: dict[str, Any], tiny_pipeline: Pipelines
) -> None:
    pipe = tiny_pipeline("stableaudio")
    offer = offer_of(pipe)
    expected = stock(pipe, **arguments)
    (recorder,) = draw(runner_of(pipe, offer), soundcall.plan(wanted(**fields), offer))
    np.testing.assert_array_equal(made(recorder), expected)
    assert recorder.steps[-1] == (arguments.get("num_inference_steps", 3),) * 2


def test_a_batch_makes_what_each_would_alone(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("stableaudio")
    offer = offer_of(pipe)
    calls = [soundcall.plan(wanted(prompt=prompt, seed=seed), offer) for prompt, seed in ((PROMPT, 1), (OTHER, 2))]
    assert len({call.key for call in calls}) == 1
    assert soundcall.plan(wanted(seconds=0.3), offer).key != calls[0].key
    forwards = Forwards(pipe, "transformer")
    together = draw(runner_of(pipe, offer), *calls)
    assert forwards.counts == {"transformer": 3}
    for call, recorder in zip(calls, together, strict=True):
        np.testing.assert_allclose(made(recorder), stock(pipe, call.seed, prompt=call.prompt), atol=1e-4)


def test_an_abandoned_call_leaves_nothing_behind(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("stableaudio")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    forwards = Forwards(pipe, "transformer")
    (left,) = draw(runner, soundcall.plan(wanted(num_inference_steps=9), offer), cancel_at={0: 2})
    assert left.outcome is None
    assert forwards.counts["transformer"] == 2
    (next_one,) = draw(runner, soundcall.plan(wanted(), offer))
    np.testing.assert_array_equal(made(next_one), stock(pipe))


REFUSED = [
    ({"seconds": LONGEST + 0.1}, "audio_length", "up to 2.048 s"),
    ({"seconds": 1.0, "start": 1.5}, "audio_length", "up to 0.548 s after 1.5 s"),
    ({"seconds": 1e-6}, "audio_length", "not 1e-06 s"),
    ({"seconds": None, "start": 3.0}, "audio_start", "before 2.048 s"),
    ({"num_inference_steps": 2000}, "num_inference_steps", "between 1 and 1000"),
    ({"negative_prompt": OTHER, "guidance_scale": 1.0}, "negative_prompt", "no effect at guidance_scale 1"),
    ({"extra": {"strength": 0.5}}, "extra_params.strength", "takes no strength"),
    ({"extra": {"audio_end_in_s": 1.0}}, "extra_params.audio_end_in_s", "takes no audio_end_in_s"),
    ({"extra": {"eta": "much"}}, "extra_params.eta", "is a number"),
    ({"format": "opus", "sample_rate": 44_100}, "sample_rate", "opus cannot carry 44100 Hz"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSED)
def test_what_the_pipeline_cannot_do_is_refused(fields: dict[str, Any], param: str, said: str, offer: Offer) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        soundcall.plan(wanted(**fields), offer)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


def test_a_pipeline_that_draws_makes_no_sound(tiny_pipeline: Pipelines) -> None:
    with pytest.raises(EngineError, match="StableDiffusionPipeline makes no sound"):
        soundcall.plan(wanted(), offer_of(tiny_pipeline("sd")))


def test_a_configured_length_holds_for_requests_without_one(tiny_pipeline: Pipelines) -> None:
    offer = offer_of(tiny_pipeline("stableaudio"), default_sampling_params={"audio_end_in_s": 0.1})
    assert soundcall.plan(wanted(seconds=None), offer).arguments["audio_end_in_s"] == 0.1
    assert soundcall.plan(wanted(), offer).arguments["audio_end_in_s"] == 0.2


@pytest.mark.parametrize(
    ("parts", "parameters", "expected"),
    [
        ({"vocoder": SimpleNamespace(config=SimpleNamespace(sampling_rate=16_000))}, ["audio_length_in_s"], 600.0),
        ({"sample_rate": 48_000}, ["audio_duration"], 600.0),
        ({"sample_rate": 24_000, "max_wav_duration": 30}, ["audio_duration_s"], 30.0),
    ],
)
def test_other_classes_name_length_and_rate_in_their_own_way(
    parts: dict[str, Any], parameters: list[str], expected: float
) -> None:
    found = sound_of(SimpleNamespace(**parts), dict.fromkeys(parameters))
    assert (found.length, found.starts, found.max_seconds) == (parameters[0], False, expected)
    assert found.rate in (16_000, 24_000, 48_000)


def test_a_class_without_a_rate_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="does not tell the sample rate"):
        sound_of(SimpleNamespace(), {})


def test_a_sound_of_one_channel_has_one_column() -> None:
    assert [row.shape for row in samples(np.zeros((2, 5)))] == [(5, 1), (5, 1)]
    assert [row.shape for row in samples(np.zeros((1, 2, 5)))] == [(5, 2)]


@pytest.mark.asyncio
async def test_the_engine_answers_with_one_file(tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    expected = stock(tiny_pipeline("stableaudio"))
    async with started(tiny_pipelines("stableaudio")) as engine:
        request = await ask(engine, wanted(progress=True))
        other = await ask(engine, wanted(format="flac", sample_rate=RATE // 2, base64=True))
        with pytest.raises(EngineError, match="makes sound and no pictures") as caught:
            await engine.run(Asked(task()))
    assert caught.value.failed.status == 400
    assert [type(event) for event in request.events] == [m.Accepted, *[m.Progress] * 3, m.Audio, m.Usage, m.Done]
    assert request.of(m.Progress)[-1] == m.Progress(3, 3)
    (file,) = request.of(m.Audio)
    assert (file.format, file.sample_rate, file.samples) == ("wav", RATE, 3200)
    np.testing.assert_allclose(decoded(file.data), np.clip(expected, -1, 1), atol=1e-4)
    (usage,) = request.of(m.Usage)
    assert usage.completion_tokens == 4
    assert json.loads(usage.details)["completion_tokens_details"] == {"text_tokens": 0, "audio_tokens": 4}
    (halved,) = other.of(m.Audio)
    assert (halved.format, halved.sample_rate, halved.samples) == ("flac", RATE // 2, 1600)
    assert decoded(base64.b64decode(halved.data)).shape == (1600, 2)


@pytest.mark.asyncio
async def test_the_engine_tells_what_it_makes(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("stableaudio")) as engine:
        assert engine._service is not None
        card = json.loads(engine._service.offer.card())
        request = Asked(task())
        request.kind, request.body = "sound", encode_task(wanted(num_inference_steps=900))
        running = asyncio.create_task(engine.run(request))
        await request.until(m.Accepted)
        running.cancel()
        await asyncio.wait({running})
        assert engine.load().running + engine.load().waiting == 0
    assert card["tasks"] == ["text-to-audio"]
    assert (card["sample_rate"], card["max_seconds"]) == (RATE, LONGEST)
    assert "audio_end_in_s" not in card["parameters"]


@pytest.mark.asyncio
async def test_step_execution_is_for_pictures(tiny_pipelines: Directories) -> None:
    with pytest.raises(ValueError, match="--step-execution: it is for pictures"):
        async with started(tiny_pipelines("stableaudio"), step_execution=True):
            pass


async def ask(engine: Any, asked: SoundTask) -> Asked:
    request = Asked(task())
    request.kind, request.body = "sound", encode_task(asked)
    await engine.run(request)
    return request
