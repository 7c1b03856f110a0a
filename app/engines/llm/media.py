"""vLLM's media connector, replaced: what a chat request carries or names is loaded by app.media.fetch.

vLLM's own connector opens any http(s) URL where no list of domains is given, whatever address is behind it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.multimodal.media.audio import AudioMediaIO
from vllm.multimodal.media.connector import global_thread_pool
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.media.video import VideoMediaIO

from app.engines.llm import resampling
from app.media import dataurl
from app.media.audio import check_seconds
from app.media.errors import MediaError, invalid, too_large
from app.media.fetch import MediaFetcher
from app.media.film import film_size
from app.media.images import check_pixels
from app.media.recording import native_rate, read_recording
from app.settings.schema import MediaConfig

CONNECTOR = "omni-app"
"""The value of VLLM_MEDIA_CONNECTOR that selects this module's connector."""

_FRAMES = "data:video/jpeg"
"""A list of JPEG files, separated by commas, in one data URL: an invention of vLLM."""

_OPEN_BACKENDS = (None, "auto", "pyav")
"""Where vLLM would give a file that libsndfile does not know to all of FFmpeg, with its descriptions of streams."""

_SHORTEST_S = 0.001
"""Of a recording: less is none."""

logger = logging.getLogger("app.engines.llm")


def install(config: MediaConfig) -> None:
    """Have every chat request of this process load its media within `config`. Call it before the engine starts."""
    MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)(partial(GuardedConnector, MediaFetcher(config)))
    # vLLM's own limits stay as a second line, for what headers do not tell; a variable that is set may be stricter.
    limits = {
        "VLLM_MAX_IMAGE_PIXELS": config.max_pixels,
        "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": math.ceil(config.max_bytes / (1 << 20)),
        "VLLM_MAX_AUDIO_DECODE_DURATION_S": math.ceil(config.max_seconds),
    }
    os.environ["VLLM_MEDIA_CONNECTOR"] = CONNECTOR
    for name, value in limits.items():
        os.environ.setdefault(name, str(value))
    resampling.without_torchaudio()


class GuardedConnector(MediaConnector):  # type: ignore[misc]
    """Loads through a MediaFetcher; checks what headers say, then decodes, in vLLM's media threads."""

    def __init__(self, fetcher: MediaFetcher, **options: Any) -> None:
        super().__init__(**options)
        self._fetcher = fetcher
        self._limits = fetcher.limits

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """As load_from_url_async, for threads without an event loop."""
        return asyncio.run(self.load_from_url_async(url, media_io, fetch_timeout=fetch_timeout))

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """The decoded medium. `fetch_timeout` is vLLM's; ours holds.

        Raises:
            MediaError: 400 or 413, with `source` set to `url`.
        """
        try:
            if url[: len(_FRAMES)].lower() == _FRAMES and isinstance(media_io, VideoMediaIO):
                return await self._in_thread(self._decode_frames, url, media_io)
            media = await self._fetcher.fetch(url, max_bytes=media_io.get_max_bytes())
            return await self._in_thread(self._decode, media.data, media_io)
        except MediaError as error:
            error.source = url
            raise

    async def _in_thread(self, decode: Callable[[Any, Any], Any], data: bytes | str, media_io: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(global_thread_pool, _decoding, decode, data, media_io)

    def _decode(self, data: bytes, media_io: Any) -> Any:
        match media_io:
            case AudioMediaIO():
                return _recording(data, media_io, self._limits)
            case VideoMediaIO():
                return _film(data, media_io, self._limits)
            case ImageMediaIO():
                check_pixels(data, self._limits.max_pixels)
        return media_io.load_bytes(data)

    def _decode_frames(self, url: str, media_io: VideoMediaIO) -> Any:
        limits = self._limits
        _, _, payload = dataurl.split(url)
        if len(payload) // 4 * 3 > limits.max_bytes:
            raise too_large(f"the frames have more than {limits.max_bytes} bytes (--max-media-bytes)")
        total = 0
        for frame in payload.split(","):
            width, height = check_pixels(
                dataurl.decode(f"data:;base64,{frame}", limits.max_bytes)[1], limits.max_pixels
            )
            total += width * height
        _check_video_pixels(total, limits.max_video_pixels)
        return media_io.load_base64("video/jpeg", payload)


def _decoding(decode: Callable[[Any, Any], Any], data: bytes | str, media_io: Any) -> Any:
    try:
        return decode(data, media_io)
    except (MediaError, VLLMValidationError):
        raise
    except Exception as error:  # decoders of half a dozen libraries raise anything for a damaged file
        kind = type(media_io).__name__.removesuffix("MediaIO").lower()
        logger.info("%s of a request could not be decoded: %s: %s", kind, type(error).__name__, error)
        raise invalid(
            f"the {kind} cannot be decoded: it is damaged, or of a kind that this server does not read"
        ) from error


def _recording(data: bytes, media_io: AudioMediaIO, limits: MediaConfig) -> Any:
    check_seconds(data, limits.max_seconds)
    if media_io.audio_backend not in _OPEN_BACKENDS:
        return media_io.load_bytes(data)
    rate = native_rate(data)
    return read_recording(data, rate=rate, limits=limits, seconds=(_SHORTEST_S, limits.max_seconds)), rate


def _film(data: bytes, media_io: VideoMediaIO, limits: MediaConfig) -> Any:
    width, height = film_size(data)
    media_io.video_loader = _bounded(media_io.video_loader, width * height, limits.max_video_pixels)
    film = media_io.load_bytes(data)
    frames, _ = film.media
    if len(frames) == 0:  # vLLM would go on with none, and divide by their number
        raise invalid("no frame of the video can be decoded")
    return film


def _bounded(loader: Any, frame_pixels: int, max_pixels: int) -> Any:
    """vLLM's video loader, which chooses frames by rules of its own, refusing a choice that is too much to decode."""

    class Bounded(type(loader)):  # type: ignore[misc]
        @classmethod
        def compute_frames_index_to_sample(cls, *args: Any, **options: Any) -> list[int]:
            chosen: list[int] = super().compute_frames_index_to_sample(*args, **options)
            _check_video_pixels(len(chosen) * frame_pixels, max_pixels)
            return chosen

    return Bounded()


def _check_video_pixels(pixels: int, max_pixels: int) -> None:
    if pixels > max_pixels:
        message = f"the frames taken of the video have {pixels} pixels, more than {max_pixels} (--max-video-pixels)"
        raise too_large(f"{message}; ask for fewer in media_io_kwargs")


def locate(body: bytes, source: str, field: str = "messages") -> str | None:
    """The path below `field` of a request at which `source` stands, such as messages[0].content[1].image_url.url.

    The data of an input_audio part counts as well: vLLM makes a data URL of it.
    """
    for path, text in _texts(json.loads(body).get(field), field):
        if text and (text == source or source.endswith(f";base64,{text}")):
            return path
    return None


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
