"""What an image's header says, before anything is decoded."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, UnidentifiedImageError

from app.media.errors import invalid, too_large

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Pillow knows forty more, some with decoders that nobody has looked at for years."""


def check_pixels(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Width and height of the image; a few kilobytes may claim to be gigabytes of pixels.

    Raises:
        MediaError: 400, it is no image; 413, it has more than `max_pixels`.
    """
    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise too_large(f"the image has far more than {max_pixels} pixels (--max-media-pixels)") from error
    except UnidentifiedImageError as error:
        raise invalid("the data is not an image in a known format (PNG, JPEG, WebP, GIF, BMP, TIFF)") from error
    except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for headers that break off or contradict
        raise invalid("the image's header is damaged") from error
    width, height = image.size
    if width * height > max_pixels:
        message = f"the image has {width}x{height} pixels, more than {max_pixels} in all (--max-media-pixels)"
        raise too_large(message)
    return width, height
