"""The pictures that a request carries or names: fetched, measured, decoded. None of it on the event loop."""

from __future__ import annotations

import asyncio
from io import BytesIO

import msgspec
from PIL import Image, ImageOps

from app.media.errors import MediaError, invalid
from app.media.fetch import MediaFetcher
from app.media.images import check_pixels
from app.protocol.pictures import PictureSource, PictureTask


class Inputs(msgspec.Struct, frozen=True):
    """Decoded: RGB, or RGBA where a file has transparency; the mask in grey, white where it is to be drawn anew."""

    images: list[Image.Image] = []
    mask: Image.Image | None = None


async def load_inputs(task: PictureTask, fetcher: MediaFetcher, *, alpha: bool = False) -> Inputs:
    """All pictures of a task, side by side; `alpha`: keep the transparency of the images.$

    Raises:
        MediaError: one cannot be had, is no image or too large; `param` names the field it came in.
    """
    images = [_load(source, fetcher, alpha) for source in task.images]
    if task.mask is None:
        return Inputs(list(await asyncio.gather(*images)))
    *loaded, mask = await asyncio.gather(*images, _load(task.mask, fetcher, alpha=True))
    return Inputs(loaded, _as_mask(mask))


async def _load(source: PictureSource, fetcher: MediaFetcher, alpha: bool) -> Image.Image:
    try:
        data = (await fetcher.fetch(source.url)).data if source.url else source.data
        return await asyncio.to_thread(_decode, data, fetcher.limits.max_pixels, alpha)
    except MediaError as error:
        raise error.at(source.param) from None


def _decode(data: bytes, max_pixels: int, alpha: bool) -> Image.Image:
    check_pixels(data, max_pixels)
    try:
        image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
        return image.convert("RGBA" if alpha and image.has_transparency_data else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow raises for data that breaks off
        raise invalid("the image's data is damaged") from error


def _as_mask(image: Image.Image) -> Image.Image:
    """OpenAI marks what is to change by transparency, diffusers by white."""
    if image.mode == "RGBA":
        return ImageOps.invert(image.getchannel("A"))
    return image.convert("L")
