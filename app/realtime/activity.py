"""Voice activity by loudness: a frame is speech that is well above the noise of the room, which is followed."""

from __future__ import annotations

import math
from array import array
from operator import mul
from typing import Literal

from app.protocol.realtimeaudio import BYTES_MS
from app.protocol.realtimesession import TurnDetection

FRAME_MS = 20
FRAME = FRAME_MS * BYTES_MS
"""Bytes of a frame."""
ONSET = 3
"""Frames that speech needs to begin: a click has fewer."""

_SILENCE = -90.0
_QUIETEST, _LOUDEST = -70.0, -50.0
"""Levels of a room that has not been listened to yet, in dB below full scale."""
_HYSTERESIS = 4.0
_FALL = 0.3
_RISE, _RISE_IN_SPEECH = 0.08, 0.03
"""How fast the noise is followed: down by a part of the difference, up by decibels, each a frame."""


def level(frame: bytes | bytearray) -> float:
    """The loudness of samples in dB below full scale, without their mean, which microphones do not get right.

    Every second sample will do: this runs fifty times a second for each socket that listens.
    """
    samples = array("h", frame)[::2]
    count = len(samples)
    mean = sum(samples) / count
    power = sum(map(mul, samples, samples)) / count - mean * mean
    return max(_SILENCE, 10 * math.log10(max(power, 1e-6) / 2**30))


class VoiceActivity:
    """Hears one stream, frame by frame; `speaking` tells whether somebody speaks."""

    def __init__(self, detection: TurnDetection) -> None:
        self._margin = 4.0 + 16.0 * detection.threshold
        self._least = -62.0 + 24.0 * detection.threshold
        self._patience = max(1, detection.silence_duration_ms // FRAME_MS)
        self._noise: float | None = None
        self._voiced = 0
        self._silent = 0
        self.speaking = False

    def hear(self, frame: bytes | bytearray) -> Literal["started", "stopped"] | None:
        """Judge the next frame of FRAME bytes: what has changed with it."""
        loud = level(frame)
        if self._noise is None:
            self._noise = min(max(loud, _QUIETEST), _LOUDEST)
        least = max(self._least, self._noise + self._margin) - (_HYSTERESIS if self.speaking else 0.0)
        self._follow(loud)
        return self._while_speaking(loud > least) if self.speaking else self._while_silent(loud > least)

    def _while_silent(self, voiced: bool) -> Literal["started"] | None:
        self._voiced = self._voiced + 1 if voiced else max(0, self._voiced - 1)
        if self._voiced < ONSET:
            return None
        self.speaking, self._silent = True, 0
        return "started"

    def _while_speaking(self, voiced: bool) -> Literal["stopped"] | None:
        self._silent = 0 if voiced else self._silent + 1
        if self._silent < self._patience:
            return None
        self.end()
        return "stopped"

    def end(self) -> None:
        """What has been said is over, whatever is heard."""
        self.speaking, self._voiced = False, 0

    def _follow(self, loud: float) -> None:
        assert self._noise is not None
        difference = loud - self._noise
        if difference < 0:
            self._noise = max(_QUIETEST, self._noise + _FALL * difference)
        else:
            self._noise += min(difference, _RISE_IN_SPEECH if self.speaking else _RISE)
