"""Pictures of requests: from where they come, and how they are decoded."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from app.engines.base import EngineError
from app.engines.diffusion.inputs import load_inputs
from app.media.fetch import MediaFetcher
from app.protocol.pictures import PictureSource, PictureTask
from app.settings.schema import MediaConfig
from tests.engines.diffusion.asking import file, noise

ORIENTATION = 0x0112
FETCHER = MediaFetcher(MediaConfig(max_pixels=10_000))


def source(image: Image.Image, param: str = "image") -> PictureSource:
    return PictureSource(data=file(image), param=param)


async def test_bytes_and_data_urls_in_order() -> None:
    url = "data:image/png;base64," + base64.b64encode(file(noise(seed=2))).decode()
    inputs = await load_inputs(PictureTask(images=[source(noise(seed=1)), PictureSource(url=url)]), FETCHER)
    for seed, image in enumerate(inputs.images, 1):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(noise(seed=seed)))
    assert inputs.mask is None


async def test_a_picture_is_turned_as_its_camera_says() -> None:
    turned = noise(30, 20)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    buffer = BytesIO()
    turned.save(buffer, "PNG", exif=exif)
    inputs = await load_inputs(PictureTask(images=[PictureSource(data=buffer.getvalue())]), FETCHER)
    assert inputs.images[0].size == (20, 30)


@pytest.mark.parametrize("alpha", [True, False])
async def test_transparency_of_an_image_is_kept_on_demand(alpha: bool) -> None:
    image = noise().convert("RGBA")
    image.putalpha(100)
    inputs = await load_inputs(PictureTask(images=[source(image)]), FETCHER, alpha=alpha)
    assert inputs.images[0].mode == ("RGBA" if alpha else "RGB")


async def test_a_mask_is_white_where_it_is_to_be_drawn_anew() -> None:
    white = Image.new("L", (64, 64), 255)
    clear = noise().convert("RGBA")
    clear.putalpha(0)
    for given in (white, clear):
        inputs = await load_inputs(PictureTask(images=[source(noise())], mask=source(given)), FETCHER)
        assert inputs.mask is not None
        assert inputs.mask.getextrema() == (255, 255)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (PictureSource(data=b"nonsense", param="image[3]"), 400),
        (PictureSource(data=file(noise())[:-200], param="image[3]"), 400),
        (PictureSource(data=file(noise(101, 100)), param="image[3]"), 413),
        (PictureSource(url="https://example.org/x.png", param="image[3]"), 400),
        (PictureSource(url="file:///etc/passwd", param="image[3]"), 400),
    ],
)
async def test_the_field_of_a_bad_picture_is_named(given: PictureSource, status: int) -> None:
    with pytest.raises(EngineError) as caught:
        await load_inputs(PictureTask(images=[source(noise()), given]), FETCHER)
    assert (caught.value.failed.status, caught.value.failed.param) == (status, "image[3]")
