"""What a pipeline returns, as pictures of bytes: rounded on the device, so that a quarter of the bytes leave it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""One picture: height x width x 3 (RGB) or 4 (RGBA)."""


def output_type(pipe: Any) -> str:
    """What to ask the pipeline for: tensors that still are on the device, if its post-processing is the stock one."""
    processors = (getattr(pipe, name, None) for name in ("image_processor", "video_processor"))
    return "pt" if any(isinstance(processor, VaeImageProcessor) for processor in processors) else "np"


def pictures(images: Any) -> list[list[Pixels]]:
    """For each row of the call its pictures: one, or the frames or layers of a pipeline that makes several.

    `images` are the `images` or `frames` of a pipeline's output, with values in [0, 1]: a tensor (rows, channels,
    height, width) or (rows, frames, channels, height, width), an array with the channels last, or nested lists of
    tensors or of Pillow images. Rounds as `output_type="pil"` does.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(images, torch.Tensor):
        return [_split(row) for row in _rounded(images.movedim(-3, -1)).cpu().numpy()]
    if isinstance(images, np.ndarray):
        return [_split(row) for row in _rounded_array(images)]
    if isinstance(images, list | tuple):
        return [_row(row) for row in images]
    raise TypeError(f"a pipeline returned {type(images).__name__} in place of pictures")


def _row(row: Any) -> list[Pixels]:
    if isinstance(row, list | tuple):
        return [picture for part in row for picture in _row(part)]
    if isinstance(row, torch.Tensor):
        return _split(_rounded(row.movedim(-3, -1)).cpu().numpy())
    if isinstance(row, np.ndarray):
        return _split(_rounded_array(row))
    return [_colours(np.asarray(row))]


def _rounded(images: torch.Tensor) -> torch.Tensor:
    return (images.float() * 255).round().clamp(0, 255).to(torch.uint8).contiguous()


def _rounded_array(images: np.ndarray[Any, Any]) -> Pixels:
    if images.dtype == np.uint8:
        return images
    return (images.astype(np.float32, copy=False) * 255).round().clip(0, 255).astype(np.uint8)


def _split(row: Pixels) -> list[Pixels]:
    """A row of one picture, or of several along its first dimension."""
    return [_colours(picture) for picture in (row if row.ndim == 4 else row[None])]


def _colours(picture: Pixels) -> Pixels:
    """Grey becomes RGB; RGB and RGBA stay."""
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture
