"""What the stub engine draws: squares of one colour, which the seed decides. Numpy and Pillow, so imported late."""

from __future__ import annotations

import binascii

import msgspec
import numpy as np

from app.cluster.messages import Picture, Usage
from app.media.encode import encode_picture
from app.protocol.pictures import PictureTask

STEPS = 4
SIDE = 64
"""Pixels, of pictures whose size was not asked for."""
_TOKENS = 64
"""What one picture counts in usage, given or drawn."""


def picture(task: PictureTask, index: int, preview: int = -1) -> Picture:
    """The picture `index` of a task, or its preview of that number."""
    width, height = task.width or SIDE, task.height or SIDE
    seed = (task.seed or 0) + index
    channels = 4 if task.transparent else 3
    pixels = np.zeros((height, width, channels), np.uint8)
    pixels[:] = [seed * 31 % 256, seed * 57 % 256, seed * 91 % 256, 0][:channels]
    data = encode_picture(pixels, task.format, task.compression)
    if task.base64:
        data = binascii.b2a_base64(data, newline=False)
    return Picture(index, memoryview(data), task.format, width, height, seed, preview)


def usage(task: PictureTask) -> Usage:
    """Words of the prompt are its tokens."""
    text, pictures = len(task.prompt.split()), _TOKENS * len(task.images)
    details = {"input_tokens_details": {"text_tokens": text, "image_tokens": pictures}}
    return Usage(text + pictures, _TOKENS * task.n, msgspec.json.encode(details))
