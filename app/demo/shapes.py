"""Captioned pictures of coloured shapes, drawn from a seed: what the demo's picture model is trained on and judged by.

A scene is one thing, or two side by side or one above the other, on a plain background. One in eight combinations of
shape, colour and background is *held out*: training never sees it, the tests ask for nothing else.
Lengths are in half pictures: x and y run from -1 (left, top) to 1 (right, bottom).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from random import Random

import torch
import torch.nn.functional as nnf
from msgspec import Struct, structs

PICTURE_SIZE = 64
"""Pixels, both ways."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 32, 38),
    "green": (32, 162, 62),
    "blue": (36, 76, 214),
    "yellow": (250, 218, 44),
    "orange": (248, 134, 22),
    "purple": (134, 48, 184),
    "pink": (252, 142, 192),
    "cyan": (52, 206, 228),
    "white": (250, 250, 250),
    "black": (14, 14, 14),
    "gray": (128, 128, 128),
    "brown": (122, 72, 34),
}
SIZES = {"small": 0.32, "medium": 0.54, "large": 0.84}
"""Radius of a thing that is alone. Only a thing in the middle can be large."""
PAIRED_RADIUS = 0.41
PLACES: dict[str, tuple[int, int]] = {
    "middle": (0, 0),
    "left": (-1, 0),
    "right": (1, 0),
    "top": (0, -1),
    "bottom": (0, 1),
    "top left": (-1, -1),
    "top right": (1, -1),
    "bottom left": (-1, 1),
    "bottom right": (1, 1),
}
"""Direction from the middle of the picture."""

_REACH = 1.05
"""Distance of a shape's farthest point from its centre, in radii."""
_MARGIN = 0.03
_SHIFT = 0.04
_SWELL = 0.06
"""How far a thing may be off its place (half pictures) and off its radius (a fraction): what seeds differ by."""
_CROWD = 7

_SIZE_WORDS = {
    "small": ("small", "small", "tiny", "little"),
    "large": ("large", "large", "big", "huge"),
    "medium": ("",),
}
_COLOUR_WORDS = {"gray": ("gray", "grey")}
_OPENINGS = ("a", "a", "a", "a", "one", "", "the", "draw a", "a picture of a", "show me a")
_MIDDLE_WORDS = ("", "", "", "", " in the middle", " in the center")
_PLACE_WORDS = (" at the {}", " in the {}", " on the {}", " at the {}")
_CORNER_WORDS = (*_PLACE_WORDS, " in the {} corner")
_BACKGROUND_WORDS = (" on a {} background", " on a {} background", " on {}", " on {} background", ", {} background")
_BESIDE = ("{0} and {1}", "{0} left of {1}", "{0} to the left of {1}", "{1} right of {0}", "{1} to the right of {0}")
_STACKED = ("{0} above {1}", "{0} above {1}", "{0} on top of {1}", "{1} below {0}", "{1} under {0}")


class Thing(Struct, frozen=True):
    """One shape in a picture: what the caption says of it, and where exactly it is."""

    shape: str
    colour: str
    size: str
    """A key of SIZES; "paired" when there are two things."""
    place: str
    x: float
    y: float
    radius: float


class Scene(Struct, frozen=True):
    """What is in one picture."""

    background: str
    things: tuple[Thing, ...]

    @property
    def held_out(self) -> bool:
        """Whether any thing of it is a combination that training never sees."""
        return any(_is_held_out(thing.shape, thing.colour, self.background) for thing in self.things)


def draw_scene(rng: Random, *, held_out: bool = False) -> Scene:
    """A scene by chance, from the training split or from the held-out one."""
    while True:
        scene = _any_scene(rng)
        if scene.held_out == held_out:
            return scene


def draw_crowd(rng: Random) -> Scene:
    """Many things anywhere, one over the other: nothing to describe, but edges everywhere."""
    background = rng.choice(list(COLOURS))
    things = (_any_thing(rng, background, rng.choice(("small", "small", "paired")), "middle") for _ in range(_CROWD))
    return Scene(
        background, tuple(structs.replace(thing, x=rng.uniform(-1, 1), y=rng.uniform(-1, 1)) for thing in things)
    )


def caption(scene: Scene, rng: Random) -> str:
    """One of many ways to describe a scene."""
    background = _word(scene.background, rng)
    if scene.background == "white" and rng.random() < 0.5:
        behind = ""  # a prompt without a background means white
    else:
        behind = rng.choice(_BACKGROUND_WORDS).format(background)
    if len(scene.things) == 2:
        wording = _BESIDE if scene.things[0].place == "left" else _STACKED
        return _spelt(rng.choice(wording).format(*(f"a {_named(thing, rng)}" for thing in scene.things)) + behind)
    (thing,) = scene.things
    opening = rng.choice(_OPENINGS)
    if thing.place == "middle":
        where = rng.choice(_MIDDLE_WORDS)
    else:
        where = rng.choice(_CORNER_WORDS if " " in thing.place else _PLACE_WORDS).format(thing.place)
    return _spelt(f"{opening} {_named(thing, rng)}{where}{behind}")


def render(scenes: Sequence[Scene], size: int = PICTURE_SIZE) -> torch.Tensor:
    """The pictures of scenes, anti-aliased: float32 (scenes, 3, size, size) from -1 to 1."""
    palette = {name: torch.tensor(rgb) / 127.5 - 1 for name, rgb in COLOURS.items()}
    pictures = torch.stack([palette[scene.background] for scene in scenes])[:, :, None, None].repeat(1, 1, size, size)
    for layer in range(max(len(scene.things) for scene in scenes)):
        rows = [i for i, scene in enumerate(scenes) if len(scene.things) > layer]
        things = [scenes[i].things[layer] for i in rows]
        cover = coverage(things, size)[:, None]
        colours = torch.stack([palette[thing.colour] for thing in things])[:, :, None, None]
        pictures[rows] = pictures[rows] * (1 - cover) + colours * cover
    return pictures


def coverage(things: Sequence[Thing], size: int = PICTURE_SIZE) -> torch.Tensor:
    """How much of each pixel a thing covers: float32 (things, size, size) from 0 to 1."""
    axis = (torch.arange(size) + 0.5) / size * 2 - 1
    centre = torch.tensor([(thing.x, thing.y) for thing in things])
    radius = torch.tensor([thing.radius for thing in things])[:, None]
    across, down = ((axis - centre[:, i : i + 1]) / radius / _FIELD_EXTENT for i in (0, 1))
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=-1)
    fields = torch.stack([_distance_field(thing.shape) for thing in things])[:, None]
    distance = nnf.grid_sample(fields, grid, padding_mode="border", align_corners=True)[:, 0]
    return (0.5 - distance * radius[:, :, None] * size / 2).clamp(0, 1)


def _any_scene(rng: Random) -> Scene:
    background = rng.choice(list(COLOURS))
    if rng.random() < 0.4:
        places = rng.choice((("left", "right"), ("top", "bottom")))
        return Scene(background, tuple(_any_thing(rng, background, "paired", place) for place in places))
    place = rng.choice(list(PLACES)) if rng.random() < 0.5 else "middle"
    size = rng.choice(("small", "medium", "medium", "large") if place == "middle" else ("small", "medium", "medium"))
    return Scene(background, (_any_thing(rng, background, size, place),))


def _any_thing(rng: Random, background: str, size: str, place: str) -> Thing:
    shape = rng.choice(list(SHAPES))
    colour = rng.choice([name for name in COLOURS if name != background])
    radius = PAIRED_RADIUS if size == "paired" else SIZES[size]
    off = max(0.0, 1 - _MARGIN - radius * _REACH)
    x, y = (step * off + rng.uniform(-_SHIFT, _SHIFT) for step in PLACES[place])
    return Thing(shape, colour, size, place, x, y, radius * (1 + rng.uniform(-_SWELL, _SWELL)))


def _is_held_out(shape: str, colour: str, background: str) -> bool:
    names = list(COLOURS)
    return (3 * list(SHAPES).index(shape) + names.index(colour) + 5 * names.index(background)) % 8 == 0


def _named(thing: Thing, rng: Random) -> str:
    size = rng.choice(_SIZE_WORDS.get(thing.size, ("",)))
    return f"{size} {_word(thing.colour, rng)} {thing.shape}".strip()


def _spelt(text: str) -> str:
    return re.sub(r"\ba (?=orange)", "an ", text.strip())


def _word(colour: str, rng: Random) -> str:
    return rng.choice(_COLOUR_WORDS.get(colour, (colour,)))


_FIELD_EXTENT = 1.5
_FIELD_CELLS = 193


@cache
def _distance_field(shape: str) -> torch.Tensor:
    """Signed distance to the outline of a shape of radius 1, negative inside: float32 (cells, cells)."""
    axis = torch.linspace(-_FIELD_EXTENT, _FIELD_EXTENT, _FIELD_CELLS)
    points = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    return SHAPES[shape](points)


def _circle(points: torch.Tensor) -> torch.Tensor:
    return points.norm(dim=-1) - 0.95


def _ring(points: torch.Tensor) -> torch.Tensor:
    return (points.norm(dim=-1) - 0.72).abs() - 0.26


def _square(points: torch.Tensor) -> torch.Tensor:
    return _polygon(points, [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)])


def _triangle(points: torch.Tensor) -> torch.Tensor:
    return _polygon(points, [(0.0, -0.95), (1.0, 0.8), (-1.0, 0.8)])


def _star(points: torch.Tensor) -> torch.Tensor:
    turns = [(i * math.pi / 5, 1.05 if i % 2 == 0 else 0.44) for i in range(10)]
    return _polygon(points, [(radius * math.sin(turn), -radius * math.cos(turn)) for turn, radius in turns])


def _cross(points: torch.Tensor) -> torch.Tensor:
    arm, tip = 0.3, 0.98
    corners = [(arm, -tip), (arm, -arm), (tip, -arm), (tip, arm), (arm, arm), (arm, tip)]
    return _polygon(points, corners + [(-x, -y) for x, y in corners])


def _heart(points: torch.Tensor) -> torch.Tensor:
    turns = [2 * math.pi * i / 48 for i in range(48)]
    down = [-(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17 for t in turns]
    return _polygon(points, [(math.sin(t) ** 3, y - 0.1) for t, y in zip(turns, down, strict=True)])


SHAPES = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "cross": _cross,
}
"""No two of them look alike at a dozen pixels. Each function takes points (..., 2) and gives signed distances."""


def _polygon(points: torch.Tensor, corners: list[tuple[float, float]]) -> torch.Tensor:
    """Signed distance to a polygon; a point is inside if a ray from it to the right crosses an odd number of edges."""
    nearest = torch.full(points.shape[:-1], math.inf)
    inside = torch.zeros(points.shape[:-1], dtype=torch.bool)
    x, y = points.unbind(-1)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        edge_x, edge_y = bx - ax, by - ay
        along = (((x - ax) * edge_x + (y - ay) * edge_y) / (edge_x**2 + edge_y**2)).clamp(0, 1)
        nearest = torch.minimum(nearest, torch.hypot(x - ax - along * edge_x, y - ay - along * edge_y))
        if edge_y:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) / edge_y * edge_x)
    return torch.where(inside, -nearest, nearest)
