from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.profiler import Durations, Profiler
from app.engines.diffusion.siblings import shell
from tests.engines.diffusion.drawing import draw

PAUSE_S = 0.02


def slow(method: Callable[..., Any]) -> Callable[..., Any]:
    def slowed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(PAUSE_S)
        return method(*args, **kwargs)

    return slowed


def measure(profiler: Profiler, pipe: Any, **more: Any) -> tuple[np.ndarray, Durations]:
    own = shell(pipe)
    own.set_progress_bar_config(disable=True)
    with profiler.measured(own) as durations:
        picture = draw(own, **more)
    return picture, durations


def test_each_stage_has_its_time(tiny_pipeline: Callable[[str], Any], caplog: pytest.LogCaptureFixture) -> None:
    pipe = tiny_pipeline("flux")
    expected = draw(pipe)
    pipe.transformer.forward = slow(pipe.transformer.forward)
    pipe.vae.decode = slow(pipe.vae.decode)
    profiler = Profiler(pipe)
    with caplog.at_level(logging.INFO, "app.diffusion"):
        picture, durations = measure(profiler, pipe)
    assert np.array_equal(picture, expected)
    assert list(durations) == ["encode_prompt", "denoise", "decode", "other", "total"]
    assert durations["denoise"] >= 4 * PAUSE_S
    assert durations["decode"] >= PAUSE_S
    parts = sum(seconds for stage, seconds in durations.items() if stage != "total")
    assert parts == pytest.approx(durations["total"])
    assert caplog.messages[0].startswith("FluxPipeline took encode_prompt ")


def test_an_edit_encodes_its_picture(tiny_pipeline: Callable[[str], Any]) -> None:
    from diffusers import FluxImg2ImgPipeline

    pipe = tiny_pipeline("flux")
    own = shell(pipe, FluxImg2ImgPipeline)
    own.set_progress_bar_config(disable=True)
    with Profiler(pipe).measured(own) as durations:
        draw(own, image=torch.zeros(1, 3, 64, 64), strength=1.0)
    assert durations["encode_image"] > 0


def test_calls_in_two_threads_are_measured_apart(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("sd")
    profiler = Profiler(pipe)
    counted: dict[str, Durations] = {}

    def run(name: str, pauses: int) -> None:
        durations: Durations
        with profiler.measured(shell(pipe)) as durations:
            for _ in range(pauses):
                with profiler.clock("denoise"):
                    time.sleep(PAUSE_S)
        counted[name] = durations

    threads = [threading.Thread(target=run, args=case) for case in (("one", 1), ("four", 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted["four"]["denoise"] > 2 * counted["one"]["denoise"]


def test_what_nobody_measures_is_not_counted(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("sd")
    profiler = Profiler(pipe)
    draw(pipe, steps=1)
    _, durations = measure(profiler, pipe, steps=1)
    before = dict(durations)
    draw(pipe, steps=1)
    assert durations == before
