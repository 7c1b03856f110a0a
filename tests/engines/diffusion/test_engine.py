"""The engine draws what the stock pipeline draws."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion.engine import DiffusionEngine
from app.protocol.pictures import PictureSource
from app.settings.schema import StageConfig
from tests.engines.diffusion.asking import Directories, Pipelines, ask, file, noise, started, stock, task

TRUE_GUIDANCE = {"negative_prompt": "blurry", "true_cfg_scale": 3.0}
KINDS: dict[str, dict[str, Any]] = {
    "sd": {"negative_prompt": "blurry", "guidance_scale": 4.0},
    "sdxl": {},
    "sd3": {"negative_prompt": "low quality"},
    "flux": TRUE_GUIDANCE,
    "flux2klein": {},
    "qwenimage": TRUE_GUIDANCE,
    "zimage": {"negative_prompt": "blurry"},
    "wan": {},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_picture_is_the_stock_pipelines_to_the_bit(
    kind: str, tiny_pipelines: Directories, tiny_pipeline: Pipelines
) -> None:
    frames = {"num_frames": 1} if kind == "wan" else {}
    expected = stock(tiny_pipeline(kind), kind, **KINDS[kind], **frames)
    async with started(tiny_pipelines(kind)) as engine:
        for _ in range(2):
            asked = await ask(engine, task(**KINDS[kind]))
            np.testing.assert_array_equal(asked.pictures[0], expected)


async def test_the_events_of_an_answer(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        asked = await ask(engine, task(num_inference_steps=4))
        assert engine.load().running == 0
        assert engine.load().steps > 4
    assert isinstance(asked.events[0], m.Accepted)
    assert asked.of(m.Progress) == [m.Progress(step, 4) for step in (1, 2, 3, 4)]
    picture = asked.of(m.Picture)[0]
    assert (picture.index, picture.format, picture.width, picture.height) == (0, "png", 64, 64)
    assert (picture.seed, picture.preview) == (7, -1)
    usage, done = asked.events[-2:]
    assert isinstance(usage, m.Usage)
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens == 64
    assert done == m.Done()


async def test_pictures_of_one_request_have_the_seeds_that_follow(
    tiny_pipelines: Directories, tiny_pipeline: Pipelines
) -> None:
    pipe = tiny_pipeline("sd")
    async with started(tiny_pipelines("sd")) as engine:
        asked = await ask(engine, task(n=3))
    assert [picture.seed for picture in asked.of(m.Picture)] == [7, 8, 9]
    for seed, picture in zip((7, 8, 9), asked.pictures, strict=True):
        np.testing.assert_array_equal(picture, stock(pipe, "sd", seed))
    steps = [event.step for event in asked.of(m.Progress)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 3


async def test_a_seed_is_drawn_and_told_where_none_is_given(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        first, second = [await ask(engine, task(seed=None)) for _ in range(2)]
        seed = first.of(m.Picture)[0].seed
        assert seed != second.of(m.Picture)[0].seed
        again = await ask(engine, task(seed=seed))
    np.testing.assert_array_equal(first.pictures[0], again.pictures[0])


@pytest.mark.parametrize("format", ["jpeg", "webp", "avif"])
async def test_other_formats(format: str, tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        exact = await ask(engine, task())
        asked = await ask(engine, task(format=format, compression=95))
    assert asked.of(m.Picture)[0].format == format
    difference = asked.pictures[0].astype(int) - exact.pictures[0].astype(int)
    assert np.abs(difference).mean() < 20


async def test_an_edit_of_a_pipeline_that_edits(tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    image = noise()
    expected = stock(tiny_pipeline("qwenimage_edit"), "qwenimage_edit", image=image, num_inference_steps=2)
    async with started(tiny_pipelines("qwenimage_edit")) as engine:
        source = PictureSource(data=file(image))
        asked = await ask(engine, task(images=[source], num_inference_steps=2, width=0, height=0), "image_edit")
        with pytest.raises(EngineError, match="needs an image") as caught:
            await ask(engine, task())
    np.testing.assert_array_equal(asked.pictures[0], expected)
    assert caught.value.failed.param == "image"


async def test_several_images_become_one(tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    images = [noise(seed=1), noise(96, 64, seed=2)]
    expected = stock(tiny_pipeline("flux2klein"), "flux2klein", image=images)
    async with started(tiny_pipelines("flux2klein")) as engine:
        sources = [PictureSource(data=file(image)) for image in images]
        asked = await ask(engine, task(images=sources), "image_edit")
    np.testing.assert_array_equal(asked.pictures[0], expected)


async def test_what_the_engine_says_of_itself(tiny_pipelines: Directories) -> None:
    stage = StageConfig(
        stage_id=0,
        name="picture",
        kind="diffusion",
        model=str(tiny_pipelines("sd")),
        engine_args={"device": "cpu", "max_num_seqs": 3, "max_generated_image_size": 10_000},
        default_sampling_params={"guidance_scale": 2.5, "seed": 1},
    )
    engine = DiffusionEngine(stage)
    capabilities = await engine.start()
    await engine.check_health()
    await engine.stop()
    assert capabilities.tasks == ["image", "image_edit", "image_variation"]
    assert (capabilities.output_modalities, capabilities.slots) == (["image"], 3)
    card = msgspec.json.decode(capabilities.card)
    assert card["class"] == "StableDiffusionPipeline"
    assert card["tasks"] == ["image-to-image", "inpaint", "text-to-image"]
    assert card["parameters"]["guidance_scale"] == 2.5
    assert card["parameters"]["num_inference_steps"] == 50
    assert card["sizes"] == {"multiple": 8, "width": 64, "height": 64, "max_pixels": 10_000}


async def test_it_answers_nothing_before_it_has_loaded(tiny_pipelines: Directories) -> None:
    stage = StageConfig(stage_id=0, name="picture", kind="diffusion", model=str(tiny_pipelines("sd")))
    engine = DiffusionEngine(stage)
    with pytest.raises(EngineError) as caught:
        await ask(engine, task())
    assert (caught.value.failed.status, caught.value.failed.code) == (503, "loading")
    await engine.stop()
