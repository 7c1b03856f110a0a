"""The engine draws what the stock pipeline draws."""

from __future__ import annotations

import asyncio
import base64
import inspect
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from diffusers import AutoPipelineForImage2Image, AutoPipelineForInpainting
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit
from PIL import Image, ImageOps

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion.engine import DiffusionEngine
from app.protocol.pictures import LoraChoice, PictureSource
from app.settings.schema import StageConfig
from tests.engines.diffusion.adapters import write_adapter
from tests.engines.diffusion.asking import (
    PROMPT,
    Asked,
    Directories,
    Pipelines,
    ask,
    file,
    noise,
    started,
    stock,
    task,
)

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


@pytest.mark.parametrize("kind", [*KINDS, "glmimage"])
async def test_a_picture_is_the_stock_pipelines_to_the_bit(
    kind: str, tiny_pipelines: Directories, tiny_pipeline: Pipelines
) -> None:
    frames = {"num_frames": 1} if kind == "wan" else {}
    more = KINDS.get(kind, {})
    expected = stock(tiny_pipeline(kind), kind, **more, **frames)
    async with started(tiny_pipelines(kind)) as engine:
        for _ in range(2):
            asked = await ask(engine, task(**more))
            np.testing.assert_array_equal(asked.pictures[0], expected)


async def test_the_events_of_an_answer(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        asked = await ask(engine, task(num_inference_steps=4, progress=True))
        assert engine.load().running == 0
        assert engine.load().steps > 4
        silent = await ask(engine, task(num_inference_steps=4))
    assert silent.of(m.Progress) == []
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
        asked = await ask(engine, task(n=3, progress=True))
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


async def test_an_edit_of_a_pipeline_that_edits(
    tiny_pipelines: Directories, tiny_pipeline: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = pipeline_qwenimage_edit.calculate_dimensions
    # It brings every input to an area of 1024 x 1024, which takes seconds.
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda _, ratio: usual(128 * 128, ratio))
    image = noise()
    expected = stock(tiny_pipeline("qwenimage_edit"), "qwenimage_edit", image=image, num_inference_steps=2)
    async with started(tiny_pipelines("qwenimage_edit")) as engine:
        source = PictureSource(data=file(image))
        asked = await ask(engine, task(images=[source], num_inference_steps=2, width=0, height=0), "image_edit")
        with pytest.raises(EngineError, match="needs an image") as caught:
            await ask(engine, task())
    np.testing.assert_array_equal(asked.pictures[0], expected)
    assert caught.value.failed.param == "image"


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux", "qwenimage", "zimage"])
async def test_an_edit_by_a_sibling(kind: str, tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    image = noise()
    sibling = AutoPipelineForImage2Image.from_pipe(tiny_pipeline(kind))
    sized = {"width", "height"} <= inspect.signature(sibling.__call__).parameters.keys()
    call = {"prompt": PROMPT, "image": image, "strength": 0.6, "num_inference_steps": 5}
    generator = torch.Generator().manual_seed(7)
    expected = sibling(**call, **({"width": 64, "height": 64} if sized else {}), generator=generator).images[0]
    async with started(tiny_pipelines(kind)) as engine:
        fields = {"images": [PictureSource(data=file(image))], "strength": 0.6, "num_inference_steps": 5}
        asked = await ask(engine, task(**fields), "image_edit")
        plain = await ask(engine, task())
    np.testing.assert_array_equal(asked.pictures[0], np.asarray(expected))
    np.testing.assert_array_equal(plain.pictures[0], stock(tiny_pipeline(kind), kind))


async def test_a_mask_keeps_what_it_does_not_mark(tiny_pipelines: Directories, tiny_pipeline: Pipelines) -> None:
    image = noise()
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    openai = image.convert("RGBA")
    openai.putalpha(ImageOps.invert(mask))
    sibling = AutoPipelineForInpainting.from_pipe(tiny_pipeline("sd"))
    call = {"prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": 3}
    generator = torch.Generator().manual_seed(7)
    expected = sibling(**call, image=image, mask_image=mask, generator=generator).images[0]
    async with started(tiny_pipelines("sd")) as engine:
        for given in (mask, openai):
            sources = {"images": [PictureSource(data=file(image))], "mask": PictureSource(data=file(given))}
            asked = await ask(engine, task(**sources), "image_edit")
            np.testing.assert_array_equal(asked.pictures[0], np.asarray(expected))


async def test_a_variation_needs_no_prompt(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        source = PictureSource(data=file(noise(80, 50)))
        asked = await ask(engine, task(prompt="", images=[source], width=0, height=0), "image_variation")
    assert asked.pictures[0].shape == (48, 80, 3)


@pytest.mark.parametrize("data", [b"", b"no picture", file(noise())[:200]])
async def test_a_damaged_picture_is_refused_before_acceptance(data: bytes, tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        request = Asked(task(images=[PictureSource(data=data, param="image[0]")]), "image_edit")
        with pytest.raises(EngineError) as caught:
            await engine.run(request)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, "image[0]")
    assert request.events == []


async def test_no_wait_for_company_is_longer_than_the_batch_timeout(tiny_pipelines: Directories) -> None:
    alone = {"max_num_seqs": 4, "request_batch_max_wait_ms": 600_000}
    async with started(tiny_pipelines("sd"), **alone, batch_timeout=0.2) as engine:
        assert (await ask(engine, task())).of(m.Done)
    async with started(tiny_pipelines("sd"), **alone, batch_timeout=600) as engine:
        waiting = asyncio.create_task(ask(engine, task()))
        await asyncio.sleep(1)
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize("steps", [{}, {"step_execution": True}])
async def test_a_request_that_is_cancelled_leaves_the_engine_free(
    steps: dict[str, Any], tiny_pipelines: Directories, tiny_pipeline: Pipelines
) -> None:
    async with started(tiny_pipelines("sd"), max_num_seqs=1, **steps) as engine:
        request, waiting = (Asked(task(num_inference_steps=900, progress=True)) for _ in range(2))
        runs = [asyncio.create_task(engine.run(asked)) for asked in (request, waiting)]
        await asyncio.wait_for(request.until(m.Progress), 60)
        assert (engine.load().running, engine.load().waiting) == (1, 1)
        for run in reversed(runs):
            run.cancel()
        await asyncio.wait(runs)
        assert engine.load().running == engine.load().waiting == 0
        asked = await asyncio.wait_for(ask(engine, task()), 60)
    assert waiting.events == [m.Accepted()]
    np.testing.assert_array_equal(asked.pictures[0], stock(tiny_pipeline("sd"), "sd"))


async def test_previews_come_before_the_picture(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        asked = await ask(engine, task(num_inference_steps=6, previews=3, format="webp", compression=80))
    assert [picture.preview for picture in asked.of(m.Picture)] == [0, 1, 2, -1]


async def test_base64_on_demand(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        plain, encoded = [await ask(engine, task(base64=wanted)) for wanted in (False, True)]
    assert base64.b64decode(encoded.of(m.Picture)[0].data) == plain.of(m.Picture)[0].data


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
    assert capabilities.tasks == ["image", "image_edit", "image_variation", "adapters"]
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


@pytest.fixture
def two_adapters(tiny_pipeline: Pipelines, tmp_path: Path) -> list[Path]:
    pipe = tiny_pipeline("sd")
    return [
        write_adapter(pipe, tmp_path / f"{name}.safetensors", seed) for seed, name in enumerate(("first", "second"))
    ]


@pytest.mark.parametrize("steps", [{}, {"step_execution": True}])
async def test_requests_side_by_side_have_their_own_adapters(
    steps: dict[str, Any], tiny_pipelines: Directories, tiny_pipeline: Pipelines, two_adapters: list[Path]
) -> None:
    expected = [stock(tiny_pipeline("sd"), "sd")]
    for adapter in two_adapters:
        pipe = tiny_pipeline("sd")
        pipe.load_lora_weights(str(adapter.parent), weight_name=adapter.name)
        expected.append(stock(pipe, "sd"))
    choices = [[], *([LoraChoice(path=str(adapter))] for adapter in two_adapters)]
    directory = str(two_adapters[0].parent)
    async with started(tiny_pipelines("sd"), max_num_seqs=3, lora_dir=[directory], **steps) as engine:
        for _ in range(2):
            answers = await asyncio.gather(*(ask(engine, task(lora=choice)) for choice in choices))
            for asked, picture in zip(answers, expected, strict=True):
                assert np.abs(asked.pictures[0].astype(int) - picture.astype(int)).max() <= 1


async def test_adapters_come_and_go_by_name(
    tiny_pipelines: Directories, tiny_pipeline: Pipelines, two_adapters: list[Path]
) -> None:
    first = msgspec.json.encode(m.Adapter(0, "first", str(two_adapters[0])))
    async with started(tiny_pipelines("sd")) as engine:
        await engine.call("load_adapter", first)
        chosen = await ask(engine, task(lora=[LoraChoice(name="first")]))
        request = Asked(task())
        request.model = "first"
        await engine.run(request)
        await engine.call("unload_adapter", first)
        with pytest.raises(EngineError) as caught:
            await ask(engine, task(lora=[LoraChoice(name="first")]))
        plain = await ask(engine, task())
    assert caught.value.failed.status == 404
    np.testing.assert_array_equal(chosen.pictures[0], request.pictures[0])
    assert not np.array_equal(chosen.pictures[0], plain.pictures[0])
    np.testing.assert_array_equal(plain.pictures[0], stock(tiny_pipeline("sd"), "sd"))


@pytest.mark.parametrize("steps", [{}, {"step_execution": True}])
async def test_the_profiler_tells_where_the_time_went(
    steps: dict[str, Any], tiny_pipelines: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "app.diffusion"):
        async with started(tiny_pipelines("sd"), enable_diffusion_pipeline_profiler=True, **steps) as engine:
            await ask(engine, task())
    for stage in ("encode_prompt", "denoise", "decode"):
        assert f"{stage} " in caplog.messages[-1]


async def test_a_cache_saves_work_for_every_request_alike(
    tiny_pipelines: Directories, tiny_pipeline: Pipelines
) -> None:
    settings = {"cache_backend": "first_block", "cache_config": {"threshold": 10.0}}
    async with started(tiny_pipelines("flux"), **settings) as engine:
        first, second = [await ask(engine, task(num_inference_steps=6)) for _ in range(2)]
    exact = stock(tiny_pipeline("flux"), "flux", num_inference_steps=6)
    assert not np.array_equal(first.pictures[0], exact)
    np.testing.assert_array_equal(first.pictures[0], second.pictures[0])
