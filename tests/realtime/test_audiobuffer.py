"""Turns are cut where they are, with their padding; what is not speech is not kept."""

from __future__ import annotations

import pytest

from app.protocol.errors import ApiError
from app.protocol.realtimeaudio import BYTES_MS
from app.protocol.realtimesession import TurnDetection
from app.realtime.audiobuffer import InputAudioBuffer, SpeechStarted, SpeechStopped
from tests.realtime.test_activity import noise

SPEECH, ROOM = noise(-20, 1), noise(-65, 1)


def hear(buffer: InputAudioBuffer, *sounds: bytes, chunk: int = 4800) -> list[SpeechStarted | SpeechStopped | bytes]:
    """What happens as the sounds come in, and the turns that they hold."""
    sound = b"".join(sounds)
    found: list[SpeechStarted | SpeechStopped | bytes] = []
    for begin in range(0, len(sound), chunk):
        buffer.append(sound[begin : begin + chunk])
        for change in buffer.turns():
            if change is not None:
                found.append(change)
            if isinstance(change, SpeechStopped):
                found.append(buffer.take_turn())
    return found


@pytest.mark.parametrize("chunk", [500, 960, 4802, 1 << 20])
def test_a_turn_is_speech_with_its_padding(chunk: int) -> None:
    buffer = InputAudioBuffer(30, TurnDetection())
    sound = ROOM * 2 + SPEECH + ROOM * 2
    started, stopped, turn = hear(buffer, sound, chunk=chunk)
    assert started == SpeechStarted(1700)
    assert stopped == SpeechStopped(3500)
    assert turn == sound[1700 * BYTES_MS : 3500 * BYTES_MS]


def test_two_turns_in_one_piece() -> None:
    buffer = InputAudioBuffer(30, TurnDetection(prefix_padding_ms=0, silence_duration_ms=100))
    found = hear(buffer, ROOM, SPEECH, ROOM, SPEECH, ROOM, chunk=1 << 20)
    assert found[::3] == [SpeechStarted(1000), SpeechStarted(3000)]
    assert found[1::3] == [SpeechStopped(2100), SpeechStopped(4100)]


def test_padding_does_not_reach_into_the_turn_before() -> None:
    buffer = InputAudioBuffer(30, TurnDetection(prefix_padding_ms=1000, silence_duration_ms=100))
    found = hear(buffer, SPEECH, ROOM[: 500 * BYTES_MS], SPEECH, ROOM)
    assert found[3] == SpeechStarted(1100), "the turn before ends there"


def test_silence_is_not_kept() -> None:
    buffer = InputAudioBuffer(30, TurnDetection())
    hear(buffer, ROOM * 5)
    assert len(buffer.commit()) <= 400 * BYTES_MS


def test_speech_without_an_end_is_cut() -> None:
    buffer = InputAudioBuffer(2, TurnDetection())
    found = hear(buffer, ROOM, SPEECH * 3)
    assert [type(change) for change in found] == [SpeechStarted, SpeechStopped, bytes] * (len(found) // 3) + [
        SpeechStarted
    ] * (len(found) % 3)
    assert len(found[2]) == 2000 * BYTES_MS  # type: ignore[arg-type]


def test_the_client_cuts() -> None:
    buffer = InputAudioBuffer(2, None)
    assert hear(buffer, SPEECH) == []
    assert buffer.commit() == SPEECH
    for held in (b"", bytes(99 * BYTES_MS)):
        buffer.append(held)
        with pytest.raises(ApiError) as caught:
            buffer.commit()
        assert caught.value.body.error.code == "input_audio_buffer_commit_empty"
    buffer.clear()
    buffer.append(SPEECH * 2)
    with pytest.raises(ApiError) as caught:
        buffer.append(bytes(2))
    assert (caught.value.status, caught.value.body.error.code) == (413, "input_audio_buffer_full")
    assert buffer.commit() == SPEECH * 2


def test_a_client_may_cut_while_somebody_speaks() -> None:
    buffer = InputAudioBuffer(30, TurnDetection())
    assert hear(buffer, ROOM, SPEECH) == [SpeechStarted(700)]
    assert buffer.speaking
    assert len(buffer.commit()) == 1300 * BYTES_MS
    assert not buffer.speaking
    assert hear(buffer, ROOM) == []


def test_detection_is_turned_on_and_off() -> None:
    buffer = InputAudioBuffer(30, None)
    hear(buffer, SPEECH)
    buffer.detect(TurnDetection())
    assert hear(buffer, ROOM) == [], "what came before is not judged"
    hear(buffer, SPEECH)
    buffer.detect(None)
    assert hear(buffer, ROOM) == []
    assert buffer.commit().endswith(ROOM)
