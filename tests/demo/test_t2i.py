"""The picture model in the package: it draws what it is asked for, also what training never showed it."""

from __future__ import annotations

from random import Random

import pytest
import torch
from diffusers import StableDiffusionPipeline

from app.demo.picture import demo_picture_model
from app.demo.shapes import Scene, caption, draw_scene
from tests.demo.eyes import Seen, expected, look

_PROMPTS = 100
_STEPS = 12


@pytest.fixture(scope="module")
def pipeline() -> StableDiffusionPipeline:
    made = StableDiffusionPipeline.from_pretrained(demo_picture_model(), dtype=torch.float32)
    made.set_progress_bar_config(disable=True)
    return made


def _draw(pipeline: StableDiffusionPipeline, prompts: list[str]) -> torch.Tensor:
    chance = [torch.Generator().manual_seed(i) for i in range(len(prompts))]
    drawn = pipeline(prompts, num_inference_steps=_STEPS, guidance_scale=4.0, generator=chance, output_type="pt")
    pictures: torch.Tensor = (drawn.images * 255).round().byte().permute(0, 2, 3, 1)
    return pictures


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def _pairs(scenes: list[Scene], pictures: torch.Tensor) -> tuple[list[bool], list[tuple[Seen, Seen]]]:
    """Whether each background is right; each thing asked for beside the thing drawn (itself blank if it is missing)."""
    backgrounds, things = [], []
    for scene, picture in zip(scenes, pictures, strict=True):
        (background, asked), (shown, drawn) = expected(scene), look(picture)
        backgrounds.append(background == shown)
        blank = [Seen("", "", "", "")] * len(asked)
        things += zip(asked, drawn if len(drawn) == len(asked) else blank, strict=True)
    return backgrounds, things


def test_draws_what_it_never_saw(pipeline: StableDiffusionPipeline) -> None:
    rng = Random(11)
    scenes = [draw_scene(rng, held_out=True) for _ in range(_PROMPTS)]
    assert sum(len(scene.things) == 2 for scene in scenes) >= 25
    pictures = _draw(pipeline, [caption(scene, rng) for scene in scenes])
    backgrounds, things = _pairs(scenes, pictures)
    assert _share(backgrounds) >= 0.9
    assert _share([asked.colour == drawn.colour for asked, drawn in things]) >= 0.9
    assert _share([asked.place == drawn.place for asked, drawn in things]) >= 0.9
    assert _share([asked.shape == drawn.shape for asked, drawn in things]) >= 0.85
    assert _share([asked.size == drawn.size for asked, drawn in things]) >= 0.85


def test_seeds_differ_in_place_not_in_content(pipeline: StableDiffusionPipeline) -> None:
    pictures = _draw(pipeline, ["a yellow star on a blue background"] * 4)
    assert [look(picture) for picture in pictures] == [("blue", [Seen("star", "yellow", "medium", "middle")])] * 4
    assert not torch.equal(pictures[0], pictures[1])


def test_it_is_small_and_half_precision() -> None:
    files = [path for path in demo_picture_model().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 12e6
    weights = [path for path in files if path.suffix == ".safetensors"]
    assert len(weights) == 3
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".ckpt", ".pkl"}]
