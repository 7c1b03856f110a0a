"""Sound for tests: made, and read back from files as a player would."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import av
import numpy as np

from app.protocol.speechtask import SpeechFormat

Samples = np.ndarray[Any, np.dtype[np.float32]]


def melody(samples: int, rate: int = 24000, channels: int = 1) -> Samples:
    """A tone that rises and falls, never twice the same: float32 (n,) or (n, channels)."""
    t = np.arange(samples) / rate
    tone = 0.4 * np.sin(2 * np.pi * (180 + 60 * np.sin(t)) * t) * (0.6 + 0.4 * np.sin(5 * t))
    noise = np.random.default_rng(0).normal(0, 0.01, samples)
    sound = (tone + noise).astype(np.float32)
    return sound if channels == 1 else np.stack([sound] + [sound[::-1]] * (channels - 1), axis=1)


def decode(data: bytes, format: SpeechFormat, channels: int = 1) -> tuple[Samples, int]:
    """What FFmpeg plays: float32 (n,) or (n, channels), and the rate in Hz (0 for pcm, which does not say it)."""
    if format == "pcm":
        return _shaped(np.frombuffer(data, "<i2").astype(np.float32).reshape(-1, channels) / 32767), 0
    # A few AAC frames are not enough for a guess; players know the type from the answer's head.
    with av.open(BytesIO(data), format="aac" if format == "aac" else None) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler("fltp")
        frames = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        planes = [frame.to_ndarray() for frame in frames]
        sound = np.concatenate(planes, axis=1) if planes else np.zeros((channels, 0), np.float32)
        return _shaped(sound.T), stream.rate


def alignment(played: Samples, sound: Samples, most: int = 2400) -> tuple[int, float]:
    """How many samples later the middle of `sound` is found in `played` (+-`most`), and the correlation there."""
    middle = len(sound) // 2
    wanted = sound[middle - most : middle + most]
    region = played[middle - 2 * most : middle + 2 * most]
    windows = np.lib.stride_tricks.sliding_window_view(region, len(wanted))
    match = windows @ wanted / (np.linalg.norm(windows, axis=1) * np.linalg.norm(wanted) + 1e-9)
    best = int(np.argmax(match))
    return best - most, float(match[best])


def _shaped(sound: Samples) -> Samples:
    return sound[:, 0] if sound.shape[1] == 1 else sound
