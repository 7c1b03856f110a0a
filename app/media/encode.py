"""Finished pictures as files: PNG, JPEG, WebP, AVIF. Runs in replica processes, on their threads: it computes."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from app.protocol.pictures import PictureFormat

try:
    from isal import isal_zlib
except ImportError:  # a machine without its wheel: slower, the same pictures
    isal_zlib = None  # type: ignore[assignment]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

MAX_SIDE: dict[PictureFormat, int] = {"png": 2**31 - 1, "jpeg": 65535, "webp": 16383, "avif": 65535}
"""The longest side in pixels that a format can hold."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {3: 2, 4: 6}
"""PNG's codes for RGB and RGBA, by the number of channels."""
_UP = 2
"""PNG's filter type "difference to the pixel above": the only good one that numpy computes in one subtraction."""
_ISAL_LEVELS = 3


def encode_picture(pixels: Pixels, format: PictureFormat, compression: int) -> bytes:
    """One picture, height x width x 3 (RGB) or 4 (RGBA), as a file.

    `compression` (0..100) is the quality of JPEG, WebP and AVIF, and 100 minus the effort for PNG, which loses nothing
    at any effort. JPEG knows no transparency: it shows the picture on white.

    Raises:
        ValueError: the pixels are of another shape, or the format cannot hold that many on a side.
    """
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES or not pixels.size:
        raise ValueError(f"a picture is an array of height x width x 3 or 4 channels, not {pixels.shape}")
    if max(pixels.shape[:2]) > MAX_SIDE[format]:
        raise ValueError(f"{format} holds at most {MAX_SIDE[format]} pixels on a side; the picture is {pixels.shape}")
    match format:
        case "png":
            return _png(pixels, effort=100 - compression)
        case "jpeg":
            # Full colour resolution only where it shows: below, half of it looks the same and is a third smaller.
            sampling = 0 if compression >= 95 else 2
            return _by_pillow(_on_white(pixels), "JPEG", quality=max(compression, 1), subsampling=sampling)
        case "webp":
            return _by_pillow(pixels, "WEBP", quality=compression, method=0)  # 4 costs four times as long for a tenth
        case "avif":
            return _by_pillow(pixels, "AVIF", quality=compression, speed=10)


def _png(pixels: Pixels, effort: int) -> bytes:
    level = 1 + effort * 8 // 100
    if isal_zlib is None or level > _ISAL_LEVELS:
        return _by_pillow(pixels, "PNG", compress_level=level)
    height, width, channels = pixels.shape
    rows = np.empty((height, 1 + width * channels), np.uint8)
    rows[:, 0] = _UP
    flat = pixels.reshape(height, -1)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    data = isal_zlib.compress(rows, level)
    return b"".join((_SIGNATURE, *_chunk(b"IHDR", header), *_chunk(b"IDAT", data), *_chunk(b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    return struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))


def _on_white(pixels: Pixels) -> Pixels:
    if pixels.shape[2] == 3:
        return pixels
    alpha = pixels[..., 3:].astype(np.uint16)
    blended = (pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return blended.astype(np.uint8)


def _by_pillow(pixels: Pixels, kind: str, **options: int) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
