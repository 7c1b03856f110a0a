"""Recordings in files of many kinds, made with PyAV, for tests of what listens."""

from __future__ import annotations

import io
import wave
from typing import Any

import av
import numpy as np

RATE = 16_000
Samples = np.ndarray[Any, np.dtype[np.float32]]


def chirp(seconds: float, low: float = 200, high: float = 2000, rate: int = RATE) -> Samples:
    """float32 (n,): a tone that rises from `low` to `high` Hz, again each second, louder and quieter as words are."""
    time = np.arange(round(seconds * rate)) / rate
    pitch = low * (high / low) ** (time % 1.0)
    loudness = 0.5 + 0.4 * np.sin(2 * np.pi * 3 * time)
    return (loudness * np.sin(2 * np.pi * np.cumsum(pitch) / rate)).astype(np.float32)


def as_wav(samples: Samples, rate: int = RATE) -> bytes:
    """The samples as a WAV file of 16 bits."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def as_file(samples: Samples, container: str, codec: str, rate: int = RATE) -> bytes:
    """The samples in a container of FFmpeg's, such as mp3, ogg, webm, mp4, asf, encoded by `codec`."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono", bit_rate=64_000)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.rate = rate
        for piece in av.AudioResampler(stream.format, "mono", rate, stream.frame_size or 0).resample(frame):
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def silent_film(container: str = "mp4", codec: str = "mpeg4", frames: int = 3) -> bytes:
    """A film of grey pictures, 64 by 64, without any sound."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=5)
        stream.width = stream.height = 64
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for shade in range(frames):
            picture = np.full((64, 64, 3), 20 * shade, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return buffer.getvalue()
