"""What one call does to the next: nothing; and what a bad one does to those beside it: nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.batching import Row
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.run import Runner
from tests.engines.diffusion.asking import OTHER, PROMPT, Pipelines, stock, task
from tests.engines.diffusion.drawing import given
from tests.engines.diffusion.running import Forwards, Recorder, call_for, draw, offer_of, runner_of
from tests.engines.diffusion.test_engine import KINDS


def assert_close(picture: Any, expected: Any) -> None:
    """What a batch may change: one step of 255 at most."""
    assert np.abs(picture.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_draws_what_each_would_alone(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe, kind)
    frames = {"num_frames": 1} if kind == "wan" else {}
    calls = [
        call_for(offer, task(**KINDS[kind] | {"prompt": prompt, "seed": seed}))
        for prompt, seed in ((PROMPT, 1), (OTHER, 2), (PROMPT, 3))
    ]
    assert len({call.key for call in calls}) == 1
    forwards = Forwards(pipe, "unet" if "unet" in pipe.components else "transformer")
    together = draw(runner_of(pipe, offer), *calls)
    assert next(iter(forwards.counts.values())) in (3, 6)
    for call, recorder in zip(calls, together, strict=True):
        alone = stock(pipe, kind, call.seed, prompt=call.prompt, **KINDS[kind], **frames)
        assert_close(recorder.picture, alone)


@pytest.mark.parametrize("kind", ["sd", "flux", "qwenimage", "wan"])
def test_an_abandoned_call_leaves_nothing_behind(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe, kind)
    denoiser = "unet" if kind == "sd" else "transformer"
    frames = {"num_frames": 1} if kind == "wan" else {}
    expected = stock(pipe, kind, **frames)
    runner = runner_of(pipe, offer)
    forwards = Forwards(pipe, denoiser)
    (left,) = draw(runner, call_for(offer, task(num_inference_steps=9, seed=1)), cancel_at={0: 2})
    assert left.outcome is None
    assert forwards.counts[denoiser] <= 2 * 2  # Wan calls it twice a step
    (next_one,) = draw(runner, call_for(offer, task()))
    np.testing.assert_array_equal(next_one.picture, expected)


def test_what_was_cancelled_while_it_waited_is_never_begun(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    forwards = Forwards(pipe, "unet", "text_encoder")
    recorder = Recorder()
    row = Row(call_for(offer, task()), 0, recorder)
    row.cancelled = True
    runner.draw([row])
    assert recorder.outcome is None
    assert forwards.counts == {"unet": 0, "text_encoder": 0}
    row.cancelled = False
    runner.draw([row])
    assert recorder.picture.shape == (64, 64, 3)
    assert forwards.counts == {"unet": 3, "text_encoder": 2}


def test_a_member_that_leaves_does_not_stop_the_others(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    calls = [call_for(offer, task(seed=seed)) for seed in (1, 2)]
    left, stayed = draw(runner_of(pipe, offer), *calls, cancel_at={0: 1})
    assert left.outcome is None
    assert_close(stayed.picture, stock(pipe, "sd", 2))


def test_a_call_stops_when_all_its_members_have_left(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    calls = [call_for(offer, task(seed=seed, num_inference_steps=9)) for seed in (1, 2)]
    forwards = Forwards(pipe, "unet")
    recorders = draw(runner_of(pipe, offer), *calls, cancel_at={0: 1, 1: 4})
    assert [recorder.outcome for recorder in recorders] == [None, None]
    assert forwards.counts["unet"] == 4


def test_one_bad_request_among_eight_fails_alone(tiny_pipeline: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    encode = type(pipe).encode_prompt

    def choosy(self: Any, prompt: Any, *arguments: Any, **more: Any) -> Any:
        if "poison" in prompt:
            raise RuntimeError("this cannot be encoded")
        return encode(self, prompt, *arguments, **more)

    monkeypatch.setattr(type(pipe), "encode_prompt", choosy)
    calls = [call_for(offer, task(seed=seed, prompt="poison" if seed == 5 else PROMPT)) for seed in range(8)]
    recorders = draw(runner_of(pipe, offer), *calls)
    bad = recorders.pop(5)
    assert bad.error.failed.status == 500
    assert "RuntimeError" in bad.error.failed.message
    for seed, recorder in zip((0, 1, 2, 3, 4, 6, 7), recorders, strict=True):
        np.testing.assert_array_equal(recorder.picture, stock(pipe, "sd", seed))


def test_what_the_pipeline_itself_refuses_is_the_clients_mistake(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("flux")
    offer = offer_of(pipe)
    (recorder,) = draw(runner_of(pipe, offer), call_for(offer, task(extra={"max_sequence_length": 4000})))
    assert recorder.error.failed.status == 400
    assert "max_sequence_length" in recorder.error.failed.message


def test_a_device_without_memory_fails_the_request_and_no_other(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    decode = pipe.vae.decode

    def exhausted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    pipe.vae.decode = exhausted
    (failed,) = draw(runner, call_for(offer, task()))
    pipe.vae.decode = decode
    assert (failed.error.failed.status, failed.error.failed.code) == (503, "out_of_memory")
    assert failed.error.__traceback__ is None
    (drawn,) = draw(runner, call_for(offer, task()))
    np.testing.assert_array_equal(drawn.picture, stock(pipe, "sd"))


def test_options_of_one_request_do_not_stick(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan22")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    forwards = Forwards(pipe, "transformer", "transformer_2")
    (before,) = draw(runner, call_for(offer, task(num_inference_steps=8)))
    usual = dict(forwards.counts)
    (changed,) = draw(runner, call_for(offer, task(num_inference_steps=8, flow_shift=9.0)))
    assert not np.array_equal(before.picture, changed.picture)
    forwards.counts |= {"transformer": 0, "transformer_2": 0}
    draw(runner, call_for(offer, task(num_inference_steps=8, extra={"boundary_ratio": 0.3})))
    assert forwards.counts["transformer"] > usual["transformer"]
    (after,) = draw(runner, call_for(offer, task(num_inference_steps=8)))
    np.testing.assert_array_equal(before.picture, after.picture)


def test_steps_are_counted_for_all_to_see(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    (recorder,) = draw(runner, call_for(offer, task(num_inference_steps=4)))
    assert recorder.steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert runner.steps >= 8


@pytest.mark.parametrize(("on_device", "asked"), [(True, "pt"), (False, "np")])
def test_pictures_leave_the_device_as_bytes_or_as_the_pipeline_makes_them(
    on_device: bool, asked: str, tiny_pipeline: Pipelines
) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    types: list[str] = []
    finish = pipe.image_processor.postprocess

    def postprocess(image: Any, output_type: str, **more: Any) -> Any:
        types.append(output_type)
        return finish(image, output_type, **more)

    pipe.image_processor.postprocess = postprocess
    runner = Runner(pipe, offer, Adapters(pipe, given()), bytes_on_device=on_device)
    (recorder,) = draw(runner, call_for(offer, task(seed=1)))
    assert types == [asked]
    assert_close(recorder.picture, stock(tiny_pipeline("sd"), "sd", 1))
