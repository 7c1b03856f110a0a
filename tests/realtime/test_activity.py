"""Speech is told from the noise of a room, however loud that is, and from what is too short to be speech."""

from __future__ import annotations

import math
import random
from array import array

import pytest

from app.protocol.realtimeaudio import RATE
from app.protocol.realtimesession import TurnDetection
from app.realtime.activity import FRAME, FRAME_MS, VoiceActivity, level

_rng = random.Random(7)
_UNIT = [_rng.uniform(-1, 1) * math.sqrt(3) for _ in range(4096)]


def noise(decibels: float, seconds: float, mean: int = 0) -> bytes:
    """White noise of that level below full scale."""
    peak = 32768 * 10 ** (decibels / 20)
    count = int(seconds * RATE)
    return array("h", [int(peak * _UNIT[position % 4096]) + mean for position in range(count)]).tobytes()


def changes(*sounds: bytes, **detection: float) -> list[tuple[str, int]]:
    """What is told of the sounds, one after the other, and after how many milliseconds."""
    activity = VoiceActivity(TurnDetection(**detection))  # type: ignore[arg-type]
    sound = b"".join(sounds)
    told = [activity.hear(sound[begin : begin + FRAME]) for begin in range(0, len(sound), FRAME)]
    return [(change, (number + 1) * FRAME_MS) for number, change in enumerate(told) if change is not None]


@pytest.mark.parametrize("mean", [0, 3000])
def test_the_level_is_that_of_the_sound_without_its_mean(mean: int) -> None:
    assert level(noise(-30, 0.02, mean)) == pytest.approx(-30, abs=1)
    assert level(bytes(FRAME)) == -90


@pytest.mark.parametrize("room", [-90, -60, -50, -42])
def test_a_room_is_no_speech(room: float) -> None:
    assert changes(noise(room, 5)) == []


@pytest.mark.parametrize(("room", "speech"), [(-90, -45), (-65, -40), (-60, -20), (-45, -20)])
def test_speech_begins_and_ends(room: float, speech: float) -> None:
    found = changes(noise(room, 1), noise(speech, 1), noise(room, 2))
    assert found == [("started", 1060), ("stopped", 2500)]


def test_speech_may_come_first() -> None:
    assert changes(noise(-25, 1), noise(-60, 1)) == [("started", 60), ("stopped", 1500)]


def test_pauses_shorter_than_asked_for_are_part_of_speech() -> None:
    words = (noise(-25, 0.3), noise(-60, 0.3)) * 3
    assert [change for change, _ in changes(noise(-60, 1), *words, noise(-60, 1))] == ["started", "stopped"]
    short = changes(noise(-60, 1), *words, noise(-60, 1), silence_duration_ms=200)
    assert [change for change, _ in short] == ["started", "stopped"] * 3


def test_a_click_is_no_speech() -> None:
    assert changes(noise(-60, 1), noise(-10, 0.04), noise(-60, 1)) == []


def test_a_higher_threshold_wants_louder_speech() -> None:
    quiet = (noise(-60, 1), noise(-46, 1), noise(-60, 1))
    assert len(changes(*quiet, threshold=0.3)) == 2
    assert changes(*quiet, threshold=0.9) == []


def test_noise_that_stays_becomes_the_room() -> None:
    (started, _), (stopped, end) = changes(noise(-60, 1), noise(-40, 20))
    assert (started, stopped) == ("started", "stopped")
    assert end < 12_000
    found = changes(noise(-60, 1), noise(-40, 14), noise(-15, 1), noise(-40, 1))
    assert [change for change, _ in found] == ["started", "stopped"] * 2, "speech over it is still heard"
