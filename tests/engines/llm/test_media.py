"""vLLM's media connector as replaced by ours: what it loads, what it refuses, and where it works."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from vllm import envs
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

from app.engines.llm import media
from app.engines.llm.media import GuardedConnector, locate
from app.media.errors import MediaError
from app.media.fetch import MediaFetcher
from app.settings.schema import MediaConfig
from tests.media.loading import loopback_too
from tests.media.test_headers import encoded, png_header, wav
from tests.media.web import Names, Web, ok, serving
from tests.recordings import as_file, as_wav, chirp, silent_film

STREAM = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"
"""The description of one, which FFmpeg would wait for."""


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serving() as server:
        yield server


def connector(*, io: dict[str, dict[str, Any]] | None = None, **limits: Any) -> GuardedConnector:
    config = MediaConfig(allowed_media_domains=["media.test"], **limits)
    fetcher = MediaFetcher(config, may_connect=loopback_too, resolver=Names(media_test=["127.0.0.1"]))
    return GuardedConnector(fetcher, media_io_kwargs=io)


def data_url(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Sixty frames of 64x48, two seconds."""
    path = tmp_path_factory.mktemp("film") / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 30.0, (64, 48))
    for shade in range(60):
        writer.write(np.full((48, 64, 3), shade * 4, dtype=np.uint8))
    writer.release()
    return path.read_bytes()


def test_install_makes_it_the_connector_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEDIA_CONNECTOR", "MAX_IMAGE_PIXELS", "MAX_AUDIO_CLIP_FILESIZE_MB", "MAX_AUDIO_DECODE_DURATION_S"):
        monkeypatch.delenv(f"VLLM_{name}", raising=False)
        monkeypatch.setenv(f"VLLM_{name}", "")  # so that it is restored
        monkeypatch.delenv(f"VLLM_{name}")
    media.install(MediaConfig(max_pixels=77, max_bytes=3 << 20, max_seconds=1.5))
    loaded = MEDIA_CONNECTOR_REGISTRY.load(
        envs.VLLM_MEDIA_CONNECTOR, media_io_kwargs=None, allowed_local_media_path="", allowed_media_domains=None
    )
    assert isinstance(loaded, GuardedConnector)
    assert (envs.VLLM_MAX_IMAGE_PIXELS, envs.VLLM_MAX_AUDIO_CLIP_FILESIZE_MB) == (77, 3)
    assert envs.VLLM_MAX_AUDIO_DECODE_DURATION_S == 2


async def test_images_by_data_and_by_url(web: Web) -> None:
    web.pages["/a.png"] = ok(encoded("PNG"))
    for url in (data_url(encoded("PNG")), web.url("/a.png")):
        assert (await connector().fetch_image_async(url)).size == (30, 20)


def test_images_without_an_event_loop() -> None:
    assert connector().fetch_image(data_url(encoded("JPEG"))).size == (30, 20)


async def test_audio() -> None:
    samples, rate = await connector().fetch_audio_async(data_url(wav(0.5)))
    assert (len(samples), rate) == (4000, 8000)


async def test_video(film: bytes) -> None:
    frames, details = (await connector().fetch_video_async(data_url(film))).media
    assert frames.shape == (32, 48, 64, 3)
    assert details["total_num_frames"] == 60


async def test_video_as_a_list_of_jpeg_files() -> None:
    frames = ",".join([base64.b64encode(encoded("JPEG")).decode()] * 3)
    loaded = (await connector().fetch_video_async(f"data:video/jpeg;base64,{frames}")).media
    assert loaded[0].shape == (3, 20, 30, 3)


async def test_files_only_from_the_directory(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded("PNG"))
    url = f"file://{tmp_path}/a.png"
    assert (await connector(allowed_local_media_path=str(tmp_path)).fetch_image_async(url)).size == (30, 20)
    with pytest.raises(MediaError, match="allowed-local-media-path"):
        await connector().fetch_image_async(url)


@pytest.mark.parametrize(
    ("method", "url", "limits", "status"),
    [
        ("image", "http://evil.test/a.png", {}, 400),
        ("image", "/etc/passwd", {}, 400),
        ("image", "data:image/png,", {}, 400),
        ("image", data_url(b"no image"), {}, 400),
        ("image", data_url(encoded("PNG")[:48]), {}, 400),
        ("image", data_url(encoded("PNG")), {"max_bytes": 50}, 413),
        ("image", data_url(encoded("PNG")), {"max_pixels": 599}, 413),
        ("image", data_url(png_header(60000, 60000)), {}, 413),
        ("audio", data_url(wav(2)), {"max_seconds": 1}, 413),
        ("audio", data_url(b"no audio"), {}, 400),
        ("audio", data_url(b"RIFF\xff\xff\xff\xffWAVEfmt "), {}, 400),
        ("audio", "file:///etc/passwd", {}, 400),
        ("audio", data_url(STREAM), {}, 400),
        ("video", data_url(STREAM), {}, 400),
        ("video", data_url(b"no video"), {}, 400),
        ("video", "http://media.test.evil/a", {}, 400),
        ("video", data_url(b"no jpeg", "video/jpeg"), {}, 400),
        ("video", data_url(encoded("JPEG"), "video/jpeg"), {"max_video_pixels": 599}, 413),
        ("video", data_url(encoded("JPEG"), "video/jpeg"), {"max_pixels": 599}, 413),
        ("video", data_url(encoded("JPEG"), "video/jpeg"), {"max_bytes": 50}, 413),
    ],
)
async def test_refusals(method: str, url: str, limits: dict[str, Any], status: int) -> None:
    load = {
        "image": connector(**limits).fetch_image_async,
        "audio": connector(**limits).fetch_audio_async,
        "video": connector(**limits).fetch_video_async,
    }[method]
    with pytest.raises(MediaError) as caught:
        await load(url)
    assert (caught.value.failed.status, caught.value.source) == (status, url)


async def test_sound_of_a_silent_film() -> None:
    """What `use_audio_in_video` asks for: vLLM takes the film for a recording, too."""
    with pytest.raises(MediaError, match="has no audio track") as caught:
        await connector().fetch_audio_async(data_url(silent_film(), "video/mp4"))
    assert caught.value.failed.status == 400


async def test_sound_of_a_container_that_only_ffmpeg_knows() -> None:
    file = as_file(chirp(0.5, rate=8000), "asf", "wmav2", 8000)
    samples, rate = await connector().fetch_audio_async(data_url(file))
    assert rate == 8000
    assert abs(len(samples) / rate - 0.5) < 0.3
    assert samples.ndim == 1


async def test_a_film_of_one_picture_that_does_not_say_how_long_it_is() -> None:
    frames, _ = (await connector().fetch_video_async(data_url(silent_film("asf", "wmv2", 1)))).media
    assert frames.shape == (1, 64, 64, 3)


async def test_a_film_of_which_vllm_decodes_nothing() -> None:
    """One picture in MP4 is what its OpenCV does not find again after it has looked for the end."""
    with pytest.raises(MediaError, match="no frame of the video can be decoded"):
        await connector().fetch_video_async(data_url(silent_film("mp4", "mpeg4", 1)))


@pytest.mark.parametrize(
    ("film", "said"),
    [
        (as_wav(chirp(0.2)), "does not read"),
        (as_file(chirp(0.2), "mp4", "aac"), "has no picture track"),
        (silent_film()[:40], "is damaged"),
    ],
)
async def test_films_without_pictures(film: bytes, said: str) -> None:
    with pytest.raises(MediaError, match=said) as caught:
        await connector().fetch_video_async(data_url(film))
    assert caught.value.failed.status == 400


async def test_the_frames_taken_of_a_video_are_counted_together(film: bytes) -> None:
    frame = 64 * 48
    load = connector(max_video_pixels=32 * frame).fetch_video_async
    assert (await load(data_url(film))).media[0].shape[0] == 32
    for wish in ({"num_frames": 33}, {"num_frames": -1}, {"video_backend": "qwen3_vl", "fps": 30}):
        greedy = connector(io={"video": wish}, max_video_pixels=32 * frame)
        with pytest.raises(MediaError) as caught:
            await greedy.fetch_video_async(data_url(film))
        assert caught.value.failed.status == 413


async def test_settings_of_a_request_that_make_no_sense(film: bytes) -> None:
    with pytest.raises(MediaError, match="cannot be decoded"):
        await connector(io={"video": {"num_frames": "many"}}).fetch_video_async(data_url(film))


async def test_decoding_is_done_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[threading.Thread] = []
    opening = Image.open

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(threading.current_thread())
        return opening(*args, **options)

    monkeypatch.setattr(Image, "open", watched)
    await connector().fetch_image_async(data_url(encoded("PNG")))
    assert seen
    assert threading.main_thread() not in seen


def test_locate_finds_the_part() -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:,x"}},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "UklG"}},
    ]
    body = json.dumps({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": parts}]}).encode()
    find = partial(locate, body)
    assert find("data:,x") == "messages[1].content[1].image_url.url"
    assert find("data:audio/wav;base64,UklG") == "messages[1].content[2].input_audio.data"
    assert find("data:,y") is None
