"""Previews are what the pipeline would show if it ended there, and change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from app.engines.diffusion import previews
from app.engines.diffusion.run import Runner
from tests.engines.diffusion.asking import Pipelines, stock, task
from tests.engines.diffusion.running import call_for, draw, offer_of
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


@pytest.mark.parametrize("kind", ["sd", "flux"])
def test_previews_are_spread_and_leave_the_picture_as_it_is(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe)
    (recorder,) = draw(Runner(pipe, offer), call_for(offer, task(num_inference_steps=6, previews=2)))
    assert [number for number, _ in recorder.previews] == [0, 1]
    first, second = (picture.astype(int) for _, picture in recorder.previews)
    final = recorder.picture.astype(int)
    np.testing.assert_array_equal(final, stock(pipe, kind, num_inference_steps=6))
    assert np.abs(second - final).mean() < np.abs(first - final).mean()


def test_only_who_asked_gets_previews(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    offer = offer_of(pipe)
    calls = [call_for(offer, task(seed=seed, previews=count)) for seed, count in ((1, 0), (2, 1))]
    without, with_one = draw(Runner(pipe, offer), *calls)
    assert (len(without.previews), len(with_one.previews)) == (0, 1)
    pictures = draw(Runner(pipe, offer), calls[1])[0].previews
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
