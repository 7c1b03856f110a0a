"""Recordings that clients send: every usual file is read, and whatever else comes is told what is wrong with it."""

from __future__ import annotations

import struct
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.media.errors import MediaError
from app.media.recording import read_recording
from app.settings.schema import MediaConfig
from tests.sounds import Samples, alignment, melody

LIMITS = MediaConfig()
RATE = 24000


def container(
    format: str, codec: str = "", *, rate: int = 48000, seconds: float = 2.0, layout: str = "stereo", film: bool = False
) -> bytes:
    """A file of that container with a sound in that codec (none: ""), and with five frames of film where wanted."""
    buffer = BytesIO()
    with av.open(buffer, "w", format=format) as file:
        video = file.add_stream("mpeg4", rate=10, width=64, height=64, pix_fmt="yuv420p") if film else None
        audio = file.add_stream(codec, rate=rate, layout=layout) if codec else None
        if video:
            for index in range(5):
                picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
                picture.pts = index
                file.mux(video.encode(picture))
            file.mux(video.encode(None))
        if audio:
            sound = melody(int(seconds * rate), rate)
            frame = av.AudioFrame.from_ndarray(np.stack([sound] * audio.channels), format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, 0
            file.start_encoding()
            file.mux(audio.encode(frame) if seconds else [])
            file.mux(audio.encode(None))
    return buffer.getvalue()


def read(data: bytes, limits: MediaConfig = LIMITS, seconds: tuple[float, float] = (1.0, 30.0)) -> Samples:
    return read_recording(data, rate=RATE, limits=limits, seconds=seconds)


def refusal(data: bytes, limits: MediaConfig = LIMITS, seconds: tuple[float, float] = (1.0, 30.0)) -> tuple[int, str]:
    with pytest.raises(MediaError) as caught:
        read(data, limits, seconds)
    return caught.value.failed.status, caught.value.failed.message


def float_wav(samples: Samples, rate: int) -> bytes:
    body = samples.astype("<f4").tobytes()
    layout = struct.pack("<HHIIHH", 3, 1, rate, rate * 4, 4, 32)
    chunks = b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


WAV = container("wav", "pcm_s16le")
MP3 = container("mp3", "libmp3lame")
MP4 = container("mp4", "aac")
OGG = container("ogg", "libopus")


# ----------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("format", "codec"),
    [
        ("wav", "pcm_s16le"),
        ("wav", "pcm_f32le"),
        ("w64", "pcm_s16le"),
        ("aiff", "pcm_s16be"),
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("ogg", "flac"),
        ("flac", "flac"),
        ("adts", "aac"),
        ("mp4", "aac"),
        ("mov", "alac"),
        ("webm", "libopus"),
        ("matroska", "aac"),
        ("asf", "libmp3lame"),
        ("avi", "libmp3lame"),
        ("mpegts", "aac"),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_usual_files(format: str, codec: str, layout: str) -> None:
    sound = read(container(format, codec, layout=layout))
    assert sound.dtype == np.float32
    assert len(sound) == pytest.approx(2 * RATE, abs=0.1 * RATE)
    assert alignment(sound, melody(2 * 48000, 48000)[::2])[1] > 0.9


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 96000])
def test_rates(rate: int) -> None:
    sound = read(container("wav", "pcm_s16le", rate=rate))
    assert len(sound) == pytest.approx(2 * RATE, abs=RATE / 100)


def test_the_sound_of_a_film() -> None:
    assert len(read(container("mp4", "aac", film=True))) == pytest.approx(2 * RATE, abs=0.1 * RATE)


@pytest.mark.parametrize(("seconds", "reads"), [(0.9, False), (1.0, True), (30.0, True), (30.3, False)])
def test_how_long_it_may_be(seconds: float, reads: bool) -> None:
    data = container("adts", "aac", seconds=seconds)
    if reads:
        assert seconds <= len(read(data)) / RATE <= min(seconds + 0.1, 30)
    else:
        status, message = refusal(data)
        assert status == 400
        assert "1 to 30 s" in message


def test_samples_beyond_full_scale_are_clipped() -> None:
    assert np.abs(read(float_wav(melody(RATE) * 1e6, RATE))).max() == 1


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be decoded"),
        (b"hello, this is no sound", "cannot be decoded"),
        (container("mp4", film=True), "no audio track"),
        (container("avi", film=True), "no audio track"),
        (container("asf", "libmp3lame")[:600], "recording"),
        (container("wav", "pcm_s16le", seconds=0.0), "0.00 s"),
        (container("flac", "flac", seconds=0.0), "0.00 s"),
        (float_wav(np.full(2 * RATE, np.nan, np.float32), RATE), "no numbers"),
        (float_wav(melody(RATE), 1_000_000_000), "1000000000 samples a second"),
        (float_wav(melody(RATE), 100), "100 samples a second"),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", "cannot be decoded"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "cannot be decoded"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, words: str) -> None:
    status, message = refusal(data)
    assert status == 400
    assert words in message


def test_playlists_are_not_followed(tmp_path: Path) -> None:
    """A file of this machine that could be read is not, whatever names it."""
    recording = tmp_path / "secret.wav"
    recording.write_bytes(WAV)
    for playlist in (
        f"ffconcat version 1.0\nfile {recording}\n",
        f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{recording}\n#EXT-X-ENDLIST\n",
    ):
        assert refusal(playlist.encode())[0] == 400


def test_too_many_bytes() -> None:
    assert refusal(WAV, MediaConfig(max_bytes=1000)) == (
        413,
        "the recording has more than 1000 bytes (--max-media-bytes)",
    )


def test_limits_of_the_server_hold_too() -> None:
    assert "longer than 1.5 s" in refusal(WAV, MediaConfig(max_seconds=1.5))[1]


def test_only_as_much_is_decoded_as_is_wanted() -> None:
    """What comes after the longest recording is never looked at: here it is garbage."""
    data = bytearray(container("mov", "alac", rate=8000, seconds=120, layout="mono"))
    half = len(data) // 2
    data[half : half + 10_000] = b"\xff" * 10_000
    assert "cannot be decoded" in refusal(bytes(data), seconds=(1, 200))[1]
    assert "longer than 30 s" in refusal(bytes(data))[1]


# ------------------------------------------------------------------------------------------------------------ fuzz


def judged(data: bytes) -> None:
    """It is read or refused, and nothing else happens."""
    with suppress(MediaError):
        sound = read(data)
        assert RATE <= len(sound) <= 30 * RATE
        assert np.isfinite(sound).all()


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"RIFF", b"OggS", b"fLaC", b"ID3\4", b"\xff\xf1", b"\x1a\x45\xdf\xa3"]),
)
def test_random_bytes(data: bytes, magic: bytes) -> None:
    judged(magic + data)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(
        [WAV, MP3, MP4, OGG, container("flac", "flac"), container("webm", "libopus"), container("asf", "libmp3lame")]
    ),
    st.floats(0, 1),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6),
)
def test_broken_files(file: bytes, share: float, wounds: list[tuple[float, bytes]]) -> None:
    """Cut off somewhere, with other bytes here and there; mostly in the first 300 bytes, where headers are."""
    data = bytearray(file[: int(len(file) * share) or len(file)])
    for position, wound in wounds:
        at = int(position**3 * len(data))
        data[at : at + len(wound)] = wound
    judged(bytes(data))
