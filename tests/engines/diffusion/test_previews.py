"""Previews are what the pipeline would show if it ended there, and change nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from app.engines.diffusion import previews
from tests.engines.diffusion.asking import Pipelines, stock, task
from tests.engines.diffusion.running import call_for, draw, offer_of, runner_of
from tests.engines.diffusion.test_engine import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_latents_make_the_finished_picture(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    frames = {"num_frames": 1} if kind == "wan" else {}
    kept = {}

    def keep(pipe: object, index: int, _: object, tensors: dict[str, object]) -> dict[str, object]:
        kept[index] = tensors["latents"]
        return tensors

    picture = stock(pipe, kind, callback_on_step_end=keep, **KINDS[kind], **frames)
    (preview,) = previews.decode(pipe, kept[2], 64, 64)
    np.testing.assert_allclose(preview.astype(int), picture.astype(int), atol=1)


FLOW = FlowMatchEulerDiscreteScheduler()
STRAIGHT = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)


@pytest.mark.parametrize("scheduler", [FLOW, STRAIGHT, DDIMScheduler()])
def test_a_preview_looks_ahead_to_where_the_noise_is_gone(scheduler: Any) -> None:
    scheduler.set_timesteps(10)
    picture, noise = torch.randn(2, 1, 4, 8, 8)

    def noisy(index: int) -> torch.Tensor:
        if isinstance(scheduler, DDIMScheduler):
            return scheduler.add_noise(picture, noise, scheduler.timesteps[index : index + 1])
        sigma = scheduler.sigmas[index]
        return (1 - sigma) * picture + sigma * noise

    for index in (1, 4, 7):
        torch.testing.assert_close(
            previews.ahead(scheduler, index, noisy(index), noisy(index + 1)), picture, atol=1e-3, rtol=1e-3
        )


def test_a_schedule_with_noise_of_its_own_is_shown_as_it_is() -> None:
    scheduler = EulerAncestralDiscreteScheduler()
    scheduler.set_timesteps(4)
    before, after = torch.randn(2, 1, 4, 8, 8)
    assert previews.ahead(scheduler, 1, before, after) is after
    assert previews.ahead(FLOW, 1, None, after) is after


@pytest.mark.parametrize("kind", ["sd", "wan", "flux2klein"])
def test_large_previews_are_halved(kind: str, tiny_pipeline: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe, kind)
    monkeypatch.setattr(previews, "_LARGE", 1000)
    (recorder,) = draw(runner_of(pipe, offer), call_for(offer, task(width=96, previews=1)))
    assert recorder.previews[0][1].shape == (32, 48, 3)
    assert recorder.picture.shape == (64, 96, 3)


@pytest.mark.parametrize("kind", ["sd", "flux"])
def test_previews_are_spread_and_leave_the_picture_as_it_is(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe)
    (recorder,) = draw(runner_of(pipe, offer), call_for(offer, task(num_inference_steps=6, previews=2)))
    assert [number for number, _ in recorder.previews] == [0, 1]
    first, second = (picture.astype(int) for _, picture in recorder.previews)
    final = recorder.picture.astype(int)
    np.testing.assert_array_equal(final, stock(pipe, kind, num_inference_steps=6))
    assert np.abs(second - final).mean() < np.abs(first - final).mean()


def test_only_who_asked_gets_previews(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    calls = [call_for(offer, task(seed=seed, previews=count)) for seed, count in ((1, 0), (2, 1))]
    without, with_one = draw(runner_of(pipe, offer), *calls)
    assert (len(without.previews), len(with_one.previews)) == (0, 1)
    pictures = draw(runner_of(pipe, offer), calls[1])[0].previews
    np.testing.assert_allclose(with_one.previews[0][1].astype(int), pictures[0][1].astype(int), atol=1)


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [(4, 3, [1, 2, 3]), (10, 1, [5]), (10, 3, [3, 5, 8]), (2, 3, [1]), (1, 3, []), (8, 0, [])],
)
def test_when_previews_are_due(steps: int, count: int, expected: list[int]) -> None:
    due = {step: previews.due(step, steps, count) for step in range(1, steps + 1)}
    assert [step for step, number in due.items() if number is not None] == expected
    numbers = [number for number in due.values() if number is not None]
    assert numbers == sorted(numbers)
    assert all(number < count for number in numbers)


def test_a_preview_that_cannot_be_drawn_costs_the_picture_nothing(
    tiny_pipeline: Pipelines, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tiny_pipeline("flux")
    offer = offer_of(pipe)
    call = msgspec.structs.replace(call_for(offer, task(previews=1)), width=48)
    (recorder,) = draw(runner_of(pipe, offer), call)
    assert recorder.previews == []
    assert "no preview" in caplog.text
    np.testing.assert_array_equal(recorder.picture, stock(pipe, "flux"))
