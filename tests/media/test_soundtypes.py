from __future__ import annotations

from io import BytesIO

import av
import numpy as np
import pytest

from app.media.soundfile import SoundEncoder
from app.media.soundtypes import sound_type
from app.protocol.speechtask import SpeechFormat
from tests.sounds import melody

OURS: dict[SpeechFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}
OTHERS = {"mp4": ("aac", "audio/mp4"), "webm": ("libopus", "audio/webm"), "mp2": ("mp2", "audio/mpeg")}


@pytest.mark.parametrize("format", OURS)
def test_files_that_are_written_here(format: SpeechFormat) -> None:
    encoder = SoundEncoder(format, 24_000, streamed=False)
    assert sound_type(encoder.push(melody(24_000)) + encoder.finish()) == OURS[format]


@pytest.mark.parametrize("container", OTHERS)
def test_files_of_others(container: str) -> None:
    codec, expected = OTHERS[container]
    file = BytesIO()
    with av.open(file, "w", container) as output:
        stream = output.add_stream(codec, rate=48_000)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.int16), "s16", "mono")
        frame.sample_rate = 48_000
        output.mux([*stream.encode(frame), *stream.encode(None)])
    assert sound_type(file.getvalue()) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"RIFF", b"RIFFxxxxAVI ", b"\x89PNG\r\n", b"<html>", b"\0" * 100, b"\xff\xd8\xff\xe0", b"PK\3\4"],
)
def test_what_is_no_sound(data: bytes) -> None:
    assert sound_type(data) is None
