"""Requests that share the denoiser's passes draw what each would alone, and cannot hurt each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.batching import Row
from app.engines.diffusion.call import Call
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.run import Runner
from app.engines.diffusion.stepping import Rendezvous, Stepper
from tests.engines.diffusion.asking import OTHER, PROMPT, Directories, Pipelines, ask, started, stock, task
from tests.engines.diffusion.running import Forwards, Recorder, call_for, offer_of
from tests.engines.diffusion.test_engine import KINDS
from tests.engines.diffusion.test_run import assert_close

PROMPTS = (PROMPT, OTHER, "a photo of an astronaut", "blue")


def stepping(pipe: Any, kind: str = "", together: int = 0) -> Runner:
    """A runner whose requests wait for each other: the first `together` of them begin with the same pass."""
    offer = offer_of(pipe, kind)
    adapters = Adapters(pipe, DiffusionOptions())
    stepper = Stepper(pipe, offer, adapters, 8, max_wait_s=0.004 if not together else 30)
    if together:
        join, barrier = stepper.rendezvous.join, threading.Barrier(together)

        def join_all() -> None:
            join()
            barrier.wait(60)

        stepper.rendezvous.join = join_all
    return Runner(pipe, offer, adapters, stepper=stepper)


def at_once(*works: Callable[[], Any]) -> None:
    """Run all of them in threads, on one core each as the engine's threads do."""

    def run(work: Callable[[], Any]) -> None:
        torch.set_num_threads(1)
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def draw_at_once(runner: Runner, calls: list[Call], cancel_at: dict[int, int] | None = None) -> list[Recorder]:
    recorders = [Recorder((cancel_at or {}).get(position, 0)) for position in range(len(calls))]
    rows = [Row(call, 0, recorder) for call, recorder in zip(calls, recorders, strict=True)]
    at_once(*(lambda row=row: runner.draw([row]) for row in rows))
    return recorders


@pytest.mark.parametrize("kind", KINDS)
def test_requests_at_different_steps_share_passes(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    frames = {"num_frames": 1} if kind == "wan" else {}
    more = [KINDS[kind] | {"prompt": prompt, "seed": seed} for seed, prompt in enumerate(PROMPTS)]
    expected = [stock(pipe, kind, num_inference_steps=3 + 2 * i, **frames, **m) for i, m in enumerate(more)]
    runner = stepping(pipe, kind, together=4)
    offer = offer_of(pipe, kind)
    forwards = Forwards(pipe, "unet" if "unet" in pipe.components else "transformer")
    calls = [call_for(offer, task(**m, num_inference_steps=3 + 2 * i)) for i, m in enumerate(more)]
    for recorder, picture in zip(draw_at_once(runner, calls), expected, strict=True):
        assert_close(recorder.picture, picture)
    (passes,) = forwards.counts.values()
    assert passes == 9 * (2 if kind in ("flux", "flux2klein", "qwenimage", "wan") else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_alone_is_drawn_to_the_bit(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    frames = {"num_frames": 1} if kind == "wan" else {}
    expected = stock(pipe, kind, **KINDS[kind], **frames)
    runner, offer = stepping(pipe, kind), offer_of(pipe, kind)
    for _ in range(2):
        (recorder,) = draw_at_once(runner, [call_for(offer, task(**KINDS[kind]))])
        np.testing.assert_array_equal(recorder.picture, expected)


@pytest.mark.parametrize("kind", ["sd", "flux", "flux2klein"])
def test_sizes_are_not_mixed_even_if_they_have_as_many_pixels(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    sizes = [{"width": 96, "height": 64}, {"width": 64, "height": 96}, {"width": 64, "height": 64}]
    expected = [stock(pipe, kind, seed, **size) for seed, size in enumerate(sizes)]
    runner, offer = stepping(pipe, kind, together=3), offer_of(pipe, kind)
    calls = [call_for(offer, task(seed=seed, **size)) for seed, size in enumerate(sizes)]
    for recorder, picture in zip(draw_at_once(runner, calls), expected, strict=True):
        assert_close(recorder.picture, picture)


def test_a_request_that_is_left_stops_and_the_others_go_on(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    expected = stock(pipe, "sd", 1, num_inference_steps=8)
    runner, offer = stepping(pipe, together=2), offer_of(pipe)
    calls = [call_for(offer, task(seed=seed, num_inference_steps=steps)) for seed, steps in ((0, 200), (1, 8))]
    forwards = Forwards(pipe, "unet")
    left, stayed = draw_at_once(runner, calls, {0: 2})
    assert left.outcome is None
    assert_close(stayed.picture, expected)
    assert forwards.counts["unet"] == 8


def test_one_bad_request_fails_alone(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    expected = [stock(pipe, "sd", seed) for seed in range(3)]
    runner, offer = stepping(pipe, together=4), offer_of(pipe)
    forward = pipe.unet.forward

    def choosy(sample: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        if (sample > 1e3).any():
            raise RuntimeError("the values have exploded")
        return forward(sample, *arguments, **more)

    pipe.unet.forward = choosy
    calls = [call_for(offer, task(seed=seed)) for seed in range(3)]
    bad = call_for(offer, task(seed=9, guidance_scale=1e9))
    *good, failed = draw_at_once(runner, [*calls, bad])
    assert failed.error.failed.status == 500
    for recorder, picture in zip(good, expected, strict=True):
        assert_close(recorder.picture, picture)


def test_previews_of_requests_side_by_side(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan")
    expected = stock(pipe, "wan", 0, num_frames=1)
    runner, offer = stepping(pipe), offer_of(pipe)
    recorders = draw_at_once(runner, [call_for(offer, task(seed=seed, previews=2)) for seed in range(3)])
    assert [[number for number, _ in recorder.previews] for recorder in recorders] == [[0, 1]] * 3
    assert_close(recorders[0].picture, expected)


async def test_the_engine_steps(tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sd")
    async with started(tiny_pipelines("sd"), step_execution=True, max_num_seqs=4) as engine:
        asked = await ask(engine, task(n=6))
        await engine.check_health()
    for seed, picture in enumerate(asked.pictures, 7):
        assert_close(picture, stock(pipe, "sd", seed))


def test_pipelines_that_cannot_are_refused(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("sdxl")
    offer, adapters = offer_of(pipe), Adapters(pipe, DiffusionOptions())
    pipe.vae.to(torch.float16)
    with pytest.raises(ValueError, match="--dtype bfloat16"):
        Stepper(pipe, offer, adapters, 2)
    pipe.unet = None
    with pytest.raises(ValueError, match="no single denoiser"):
        Stepper(pipe, offer, adapters, 2)


class Doubler(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(values))
        return values * 2


def test_a_call_does_not_wait_for_ever_for_the_others() -> None:
    from app.engines.diffusion.fusing import Forward

    model, table = Doubler(), Rendezvous(most=8, max_wait_s=0.01, active=lambda _: nullcontext())
    table.join()
    table.join()
    values = torch.ones(2, 3, 4)
    result = table.call(model, Forward(model, (values,), {}, {}))
    assert torch.equal(result, values * 2)
    assert model.batches == [2]
