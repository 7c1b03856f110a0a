"""Images and audio are judged by their headers, before they are decoded."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
import soundfile
from PIL import Image

from app.media.audio import check_seconds
from app.media.errors import MediaError
from app.media.images import check_pixels


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims this size and holds no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + b"\0\0\0\0IDAT"


def encoded(kind: str, size: tuple[int, int] = (30, 20)) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", size).save(buffer, kind)
    return buffer.getvalue()


def wav(seconds: float, rate: int = 8000) -> bytes:
    buffer = BytesIO()
    soundfile.write(buffer, np.zeros(int(seconds * rate), dtype=np.float32), rate, format="WAV")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_images_within_the_limit(kind: str) -> None:
    assert check_pixels(encoded(kind), 600) == (30, 20)


@pytest.mark.parametrize("data", [encoded("PNG"), png_header(5000, 5000), png_header(2**31 - 1, 2**31 - 1)])
def test_images_over_the_limit(data: bytes) -> None:
    with pytest.raises(MediaError) as caught:
        check_pixels(data, 599)
    assert (caught.value.failed.status, caught.value.failed.code) == (413, "media_too_large")


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n", wav(0.1)]
)
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises(MediaError) as caught:
        check_pixels(data, 1000)
    assert (caught.value.failed.status, caught.value.failed.code) == (400, "invalid_media")


def test_audio_at_and_over_the_limit() -> None:
    check_seconds(wav(1.0), 1.0)
    with pytest.raises(MediaError) as caught:
        check_seconds(wav(1.1), 1.0)
    assert caught.value.failed.status == 413
    assert "1.1 s" in caught.value.failed.message


def test_audio_of_unknown_containers_is_left_to_its_decoder() -> None:
    check_seconds(b"\x1aE\xdf\xa3 perhaps WebM", 1.0)
