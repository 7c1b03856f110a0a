"""Pipelines that make sound: what a loaded one can be asked for, and the samples that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]
"""One sound: samples x channels, of -1..1."""

LENGTHS = ("audio_end_in_s", "audio_length_in_s", "audio_duration_s", "audio_duration", "duration")
"""What classes of diffusers call the length of a sound in seconds; the first is its end, counted in a longer piece."""
START = "audio_start_in_s"

_LONGEST_S = 600.0
"""Of a pipeline that names no limit of its own."""


class Sound(msgspec.Struct, frozen=True):
    """Of a pipeline: its sample rate in Hz, the longest sound in seconds, its argument for the length, "" for none.

    `starts`: the length is an end, and the start is another argument.
    """

    rate: int
    max_seconds: float
    length: str
    starts: bool


def sound_of(pipe: Any, parameters: Mapping[str, Any]) -> Sound:
    """Of a loaded pipeline whose call has `parameters`.

    Raises:
        ValueError: it does not tell its sample rate.
    """
    length = next((name for name in LENGTHS if name in parameters), "")
    return Sound(_rate(pipe), _max_seconds(pipe), length, length == LENGTHS[0] and START in parameters)


def samples(audios: Any) -> list[Samples]:
    """For each row of the call its sound. `audios` is an array (rows, n) or (rows, channels, n)."""
    return [np.atleast_2d(np.asarray(row, np.float32)).T for row in audios]


def _rate(pipe: Any) -> int:
    for part in (pipe, getattr(pipe, "vocoder", None), getattr(pipe, "vae", None)):
        for holder in (part, getattr(part, "config", None)):
            for name in ("sample_rate", "sampling_rate"):
                if isinstance(rate := getattr(holder, name, None), int):
                    return rate
    raise ValueError(f"{type(pipe).__name__} does not tell the sample rate of its sound")


def _max_seconds(pipe: Any) -> float:
    if isinstance(longest := getattr(pipe, "max_wav_duration", None), int | float):
        return float(longest)
    latents = getattr(getattr(getattr(pipe, "transformer", None), "config", None), "sample_size", None)
    hop = getattr(getattr(pipe, "vae", None), "hop_length", None)
    return latents * hop / _rate(pipe) if isinstance(latents, int) and isinstance(hop, int) else _LONGEST_S
