"""Pictures survive being written: what Pillow reads back is what was drawn."""

from __future__ import annotations

import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from app.media import encode
from app.media.encode import Pixels, encode_picture
from app.protocol.pictures import PictureFormat

FORMATS: list[PictureFormat] = ["png", "jpeg", "webp", "avif"]
MODES = {3: "RGB", 4: "RGBA"}


def drawn(height: int, width: int, channels: int = 3) -> Pixels:
    """Smooth in one direction, noise in the other, so that no filter is trivial."""
    noise = np.random.default_rng(7).integers(0, 40, (height, width, channels))
    ramp = np.linspace(0, 215, width)[None, :, None]
    return (noise + ramp).astype(np.uint8)


def read(data: bytes) -> tuple[str, Pixels]:
    image = Image.open(BytesIO(data))
    return str(image.format).lower(), np.asarray(image)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("compression", [100, 80, 60, 0])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (37, 64)])
def test_png_loses_nothing(channels: int, compression: int, size: tuple[int, int]) -> None:
    pixels = drawn(*size, channels)
    kind, back = read(encode_picture(pixels, "png", compression))
    assert kind == "png"
    np.testing.assert_array_equal(back, pixels)


def test_png_of_pixels_that_are_not_contiguous() -> None:
    pixels = drawn(40, 40, 4)[::-1, 3:30:2]
    np.testing.assert_array_equal(read(encode_picture(pixels, "png", 100))[1], pixels)


def test_png_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "isal_zlib", None)
    pixels = drawn(20, 30)
    np.testing.assert_array_equal(read(encode_picture(pixels, "png", 100))[1], pixels)


def test_png_is_smaller_for_more_effort() -> None:
    pixels = drawn(128, 128)
    sizes = [len(encode_picture(pixels, "png", compression)) for compression in (100, 0)]
    assert sizes[1] < sizes[0] < pixels.size


@pytest.mark.parametrize("format", ["jpeg", "webp", "avif"])
def test_quality_of_lossy_formats(format: PictureFormat) -> None:
    pixels = drawn(96, 128)
    errors, sizes = [], []
    for compression in (0, 50, 100):
        data = encode_picture(pixels, format, compression)
        kind, back = read(data)
        assert (kind, back.shape) == (format, pixels.shape)
        errors.append(np.abs(back.astype(int) - pixels).mean())
        sizes.append(len(data))
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(sizes)
    assert errors[2] < 10


@pytest.mark.parametrize("format", ["png", "webp", "avif"])
def test_transparency_is_kept(format: PictureFormat) -> None:
    pixels = drawn(32, 32, 4)
    pixels[:16, :, 3], pixels[16:, :, 3] = 0, 255
    _, back = read(encode_picture(pixels, format, 100))
    assert back.shape == pixels.shape
    assert back[:14, :, 3].max() < 10
    assert back[18:, :, 3].min() > 245


def test_jpeg_shows_transparency_on_white() -> None:
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:, 16:, 3] = 255
    _, back = read(encode_picture(pixels, "jpeg", 100))
    assert back[:, :12].min() > 250
    assert back[:, 20:].max() < 5


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (0, 8, 3)])
def test_what_is_no_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="height x width x 3 or 4"):
        encode_picture(np.zeros(shape, np.uint8), "png", 100)


def test_a_format_that_cannot_hold_it() -> None:
    with pytest.raises(ValueError, match="webp holds at most 16383"):
        encode_picture(np.zeros((1, 16384, 3), np.uint8), "webp", 100)


def test_every_checksum_of_a_png_is_right() -> None:
    """Pillow forgives a wrong one in some chunks; browsers do not."""
    data = encode_picture(drawn(9, 9), "png", 100)
    position, kinds = 8, []
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind_and_body = data[position + 4 : position + 8 + length]
        assert int.from_bytes(data[position + 8 + length : position + 12 + length], "big") == zlib.crc32(kind_and_body)
        kinds.append(kind_and_body[:4])
        position += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
