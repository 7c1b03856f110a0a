"""A recording that a client has sent, as samples: a voice to imitate. Computes; replicas only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError

from app.media.errors import MediaError, invalid, too_large
from app.settings.schema import MediaConfig

Samples = np.ndarray[Any, np.dtype[np.float32]]

_CONTAINERS = "wav,w64,aiff,au,caf,mp3,ogg,flac,aac,amr,mov,matroska,asf,avi,mpegts"
"""No others: playlists among FFmpeg's formats open files and addresses that stand in them."""
_RATES = range(4000, 384_001)
"""In Hz. To resample from rates far beyond these takes filters of gigabytes."""
_SLACK_S = 0.1
"""What codecs add at the ends of a sound."""


def read_recording(
    data: bytes, *, rate: int, limits: MediaConfig, seconds: tuple[float, float] = (1.0, 30.0)
) -> Samples:
    """float32 mono (n,) of -1..1 at `rate` Hz, of a file in any usual format, whose length is within `seconds`.

    No more than the longest recording is ever decoded, whatever the file has in it.

    Raises:
        MediaError: 400, it cannot be decoded, has no audio track, is too short or too long; 413, too many bytes.
    """
    if len(data) > limits.max_bytes:
        raise too_large(f"the recording has more than {limits.max_bytes} bytes (--max-media-bytes)")
    shortest, longest = seconds[0], min(seconds[1], limits.max_seconds)
    enough = int((longest + _SLACK_S) * rate)
    parts, count = [], 0
    try:
        for part in _decoded(data, rate):
            parts.append(part)
            if (count := count + len(part)) > enough:
                raise invalid(f"the recording is longer than {longest:g} s: send {shortest:g} to {longest:g} s of it")
    except (FFmpegError, ValueError) as error:
        raise _undecodable(error) from error
    if count < shortest * rate:
        raise invalid(f"the recording is {count / rate:.2f} s long: send {shortest:g} to {longest:g} s")
    sound = np.concatenate(parts)[: int(longest * rate)]
    if not np.isfinite(sound).all():
        raise invalid("the recording has samples that are no numbers")
    return np.clip(sound, -1, 1)


def native_rate(data: bytes) -> int:
    """The sample rate of a recording in Hz, as its header says.

    Raises:
        MediaError: 400, it cannot be decoded, or has no audio track.
    """
    try:
        with _opened(data) as container:
            return _audio_track(container).rate
    except (FFmpegError, ValueError) as error:
        raise _undecodable(error) from error


def _decoded(data: bytes, rate: int) -> Iterator[Samples]:
    with _opened(data) as container:
        stream = _audio_track(container)
        resampler = av.AudioResampler("fltp", "mono", rate)
        for frame in container.decode(stream):
            if frame.sample_rate not in _RATES:
                raise invalid(f"the recording has {frame.sample_rate} samples a second: send one of 8000 to 96000")
            yield from (part.to_ndarray()[0] for part in resampler.resample(frame))
        yield from (part.to_ndarray()[0] for part in resampler.resample(None))


def _opened(data: bytes) -> InputContainer:
    options = {"format_whitelist": _CONTAINERS, "codec_whitelist": _audio_codecs(), "protocol_whitelist": ""}
    container: InputContainer = av.open(BytesIO(data), options=options, metadata_errors="replace")
    return container


def _audio_track(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise invalid("the recording has no audio track")
    return container.streams.audio[0]


def _undecodable(error: Exception) -> MediaError:
    reason = getattr(error, "strerror", None) or str(error)
    return invalid(f"the recording cannot be decoded as WAV, MP3, Ogg, FLAC, AAC, MP4 or WebM ({reason})")


@cache
def _audio_codecs() -> str:
    """All of them: a picture or a film in the file is not decoded either, to find out what it is."""
    names = (name for name in av.codec.codecs_available if _is_audio(name))
    return ",".join(sorted(names))


def _is_audio(name: str) -> bool:
    try:
        return bool(av.Codec(name, "r").type == "audio")
    except av.codec.codec.UnknownCodecError:  # it only encodes
        return False
