"""Captioned pictures: what the picture model learns from has to be right."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from random import Random

import pytest
import torch

from app.demo.shapes import (
    COLOURS,
    PLACES,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    caption,
    coverage,
    draw_crowd,
    draw_scene,
    render,
)
from tests.demo.eyes import expected, look


def _scenes(count: int, *, held_out: bool = False) -> list[Scene]:
    rng = Random(5)
    return [draw_scene(rng, held_out=held_out) for _ in range(count)]


def _combinations(scene: Scene) -> set[tuple[str, str, str]]:
    return {(thing.shape, thing.colour, scene.background) for thing in scene.things}


def test_training_never_sees_what_is_held_out() -> None:
    seen = set().union(*map(_combinations, _scenes(20000)))
    unseen = [scene for scene in _scenes(2000, held_out=True) if _combinations(scene) - seen]
    assert len(unseen) == 2000
    everything = len(SHAPES) * len(COLOURS) * (len(COLOURS) - 1)
    assert 0.85 < len(seen) / everything < 0.9


@pytest.mark.parametrize("held_out", [False, True])
def test_both_splits_hold_every_word(held_out: bool) -> None:
    scenes = _scenes(3000, held_out=held_out)
    things = [thing for scene in scenes for thing in scene.things]
    assert {scene.background for scene in scenes} == set(COLOURS)
    assert {thing.colour for thing in things} == set(COLOURS)
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {thing.size for thing in things} == {*SIZES, "paired"}
    assert {thing.place for thing in things} == set(PLACES)


def test_a_seed_is_a_picture() -> None:
    first, again = render(_scenes(8)), render(_scenes(8))
    assert torch.equal(first, again)
    assert first.shape == (8, 3, 64, 64)
    assert first.min() >= -1
    assert first.max() <= 1


def test_pictures_show_what_the_scene_says() -> None:
    scenes = _scenes(120)
    pictures = ((render(scenes) + 1) * 127.5).round().byte().permute(0, 2, 3, 1)
    for scene, picture in zip(scenes, pictures, strict=True):
        assert look(picture) == expected(scene)


@pytest.mark.parametrize(
    ("shape", "area"),
    [
        ("circle", math.pi * 0.95**2),
        ("square", 1.7**2),
        ("triangle", 1.75),
        ("ring", math.pi * (0.98**2 - 0.46**2)),
        ("cross", 4 * 0.98 * 0.6 - 0.6**2),
        ("star", 5 * 1.05 * 0.44 * math.sin(math.pi / 5)),
    ],
)
def test_shapes_have_their_area(shape: str, area: float) -> None:
    cover = coverage([Thing(shape, "", "", "", 0.1, -0.05, 0.6)], size=128)
    assert cover.sum().item() / 64**2 == pytest.approx(area * 0.6**2, rel=0.02)


def test_edges_are_smooth_and_only_edges() -> None:
    (cover,) = coverage([Thing("circle", "", "", "", 0.0, 0.0, 0.6)])
    between = ((cover > 0) & (cover < 1)).sum().item()
    around = 2 * math.pi * 0.95 * 0.6 * 32
    assert 0.7 * around < between < 2 * around


def test_captions_name_everything_in_the_right_order() -> None:
    rng = Random(6)
    for scene in _scenes(2000):
        text = caption(scene, rng).replace("grey", "gray")
        named = re.findall(rf"({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})\b", text)
        things = [(thing.colour, thing.shape) for thing in scene.things]
        backwards = re.search(r" right of | below | under ", text)
        assert named == (things[::-1] if backwards else things), text
        if scene.background != "white":
            assert re.search(rf"{scene.background}( background)?$", text), text
        (place,) = {thing.place for thing in scene.things} if len(scene.things) == 1 else {"middle"}
        assert place == "middle" or place in text


def test_captions_are_english() -> None:
    rng = Random(7)
    texts = [caption(scene, rng) for scene in _scenes(3000)]
    assert any("an orange" in text for text in texts)
    for text in texts:
        assert not re.search(r"\ba orange|  |^ | $", text), text
        words = text.replace(",", "").split()
        assert all(a != b for a, b in pairwise(words)), text


def test_crowds_have_more_edges_than_scenes() -> None:
    rng = Random(8)
    plain, crowded = (render([draw(rng) for _ in range(50)]) for draw in (draw_scene, draw_crowd))
    edges = [(pictures[..., 1:] != pictures[..., :-1]).any(dim=1).float().mean() for pictures in (plain, crowded)]
    assert edges[1] > 2 * edges[0]
