"""Tells what a picture of shapes shows, by geometry alone: what differs from the background, laid over templates."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as nnf

from app.demo.shapes import COLOURS, PAIRED_RADIUS, PICTURE_SIZE, PLACES, SHAPES, SIZES, Scene, Thing, coverage

_DIFFERS = 45.0
"""Distance in RGB from the background from which on a pixel belongs to something: half of what separates colours."""
_SPECK = 8
"""Parts of fewer pixels are not seen."""
_OFF_MIDDLE = 0.2
"""Distance from the middle line of the picture (half pictures) from which on something is beside it."""


class Seen(NamedTuple):
    """One thing, in the words of app.demo.shapes."""

    shape: str
    colour: str
    size: str
    place: str


def look(picture: torch.Tensor) -> tuple[str, list[Seen]]:
    """The background and the things, in the order of PLACES, of one picture: uint8 (64, 64, 3)."""
    pixels = picture.float()
    border = torch.cat([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]).median(dim=0).values
    differs = (pixels - border).norm(dim=-1) > _DIFFERS
    things = [_recognize(pixels, part) for part in _parts(differs)]
    if len(things) > 1:
        things = [thing._replace(size="paired") for thing in things]  # captions do not tell the size of one of two
    return _nearest_colour(border), _in_order(things)


def expected(scene: Scene) -> tuple[str, list[Seen]]:
    """What look() should see of a scene."""
    things = [Seen(thing.shape, thing.colour, thing.size, thing.place) for thing in scene.things]
    return scene.background, _in_order(things)


def _in_order(things: list[Seen]) -> list[Seen]:
    return sorted(things, key=lambda seen: list(PLACES).index(seen.place))


def _recognize(pixels: torch.Tensor, part: torch.Tensor) -> Seen:
    things, masks, middles = _templates()
    shift = (_middle(part) - middles).round().long()
    moved = torch.stack([mask.roll(tuple(by), (0, 1)) for mask, by in zip(masks, shift.tolist(), strict=True)])
    overlap = (moved & part).sum((1, 2)) / (moved | part).sum((1, 2))
    best = int(overlap.argmax())
    down, across = (shift[best] / (PICTURE_SIZE / 2)).tolist()
    inner = nnf.avg_pool2d(part[None].float(), 3, 1, 1)[0] > 0.99
    colour = pixels[inner if inner.any() else part].median(dim=0).values
    names = [("top", "", "bottom")[_side(down)], ("left", "", "right")[_side(across)]]
    place = " ".join(name for name in names if name) or "middle"
    return Seen(things[best].shape, _nearest_colour(colour), things[best].size, place)


def _side(offset: float) -> int:
    return 1 if abs(offset) < _OFF_MIDDLE else 2 if offset > 0 else 0


@cache
def _templates() -> tuple[list[Thing], torch.Tensor, torch.Tensor]:
    """Every shape in every size, as drawn in the middle; their masks; the middles of those, in pixels."""
    radii = {**SIZES, "paired": PAIRED_RADIUS}
    things = [
        Thing(shape, "", size, "middle", 0.0, 0.0, radius * swell)
        for shape in SHAPES
        for size, radius in radii.items()
        for swell in (0.95, 1.0, 1.05)
    ]
    masks = coverage(things) > 0.5
    return things, masks, torch.stack([_middle(mask) for mask in masks])


def _middle(mask: torch.Tensor) -> torch.Tensor:
    """The middle of the bounding box: (down, across) in pixels."""
    at = mask.nonzero().float()
    return (at.amin(dim=0) + at.amax(dim=0)) / 2


def _parts(mask: torch.Tensor) -> list[torch.Tensor]:
    """Connected parts: the highest number of each spreads over it until nothing changes."""
    numbers = torch.arange(1, mask.numel() + 1, dtype=torch.float32).reshape(mask.shape) * mask
    while True:
        spread = nnf.max_pool2d(numbers[None], 3, 1, 1)[0] * mask
        if torch.equal(spread, numbers):
            break
        numbers = spread
    parts = [numbers == number for number in numbers.unique() if number]
    return [part for part in parts if part.sum() >= _SPECK]


def _nearest_colour(rgb: torch.Tensor) -> str:
    palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
    return list(COLOURS)[int((palette - rgb).norm(dim=1).argmin())]
