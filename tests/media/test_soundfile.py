"""Files of every format hold the sound that was pushed, no more and no less, whole and in pieces."""

from __future__ import annotations

from io import BytesIO
from typing import get_args

import numpy as np
import pytest
import soundfile

from app.media.soundfile import RATES, Resampler, SoundEncoder, carried_rate, resample
from app.protocol.speechtask import SpeechFormat
from tests.sounds import Samples, alignment, decode, melody

FORMATS: tuple[SpeechFormat, ...] = get_args(SpeechFormat)
RATE = 24000
LENGTHS = (48, 575, 576, 577, 1104, 1152, 5000, 30_011)
AAC_FRAME = 1024
MP3_FRAME = 576


def encode(
    format: SpeechFormat, sound: Samples, *, streamed: bool, rate: int = RATE, channels: int = 1, file_rate: int = 0
) -> list[bytes]:
    """The pieces of a file whose sound comes in seven uneven parts, an empty one among them."""
    encoder = SoundEncoder(format, rate, channels=channels, streamed=streamed, file_rate=file_rate)
    cuts = [len(sound) * share // 100 for share in (1, 1, 7, 30, 60, 93)]
    return [*(encoder.push(part) for part in np.split(sound, cuts)), encoder.finish()]


def heard(format: SpeechFormat, sound: Samples, *, streamed: bool, rate: int = RATE) -> Samples:
    """What a player makes of the file, at `rate`; Opus is played at 48 kHz, of which every other sample is kept."""
    played, _ = decode(b"".join(encode(format, sound, streamed=streamed, rate=rate)), format)
    return played[::2] if format == "opus" else played


# ------------------------------------------------------------------------------------------------- sample by sample


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("format", ["flac", "wav", "pcm"])
def test_lossless_files_hold_the_samples(format: SpeechFormat, streamed: bool) -> None:
    sound = melody(5000)
    written = heard(format, sound, streamed=streamed)
    assert written.shape == sound.shape
    assert np.abs(written - sound).max() < 2 / 32767


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav", "pcm"])
def test_whole_files_play_as_many_samples_as_were_pushed(format: SpeechFormat, length: int) -> None:
    assert len(heard(format, melody(length), streamed=False)) == length


@pytest.mark.parametrize("length", LENGTHS)
def test_what_formats_cannot_say_of_their_ends(length: int) -> None:
    """ADTS knows neither delay nor length, an MP3 stream no length: whole frames, and no whole frame too many."""
    aac = len(heard("aac", melody(length), streamed=True))
    assert aac == AAC_FRAME + -(-length // AAC_FRAME) * AAC_FRAME
    mp3 = len(heard("mp3", melody(length), streamed=True))
    assert 0 <= mp3 - length < MP3_FRAME


@pytest.mark.parametrize("format", FORMATS)
def test_streamed_and_whole_files_sound_the_same(format: SpeechFormat) -> None:
    sound = melody(30_011)
    whole, streamed = heard(format, sound, streamed=False), heard(format, sound, streamed=True)
    assert np.array_equal(streamed[: len(whole)], whole)
    assert len(streamed) == len(whole) or format == "mp3"
    assert np.abs(streamed[len(whole) :]).max(initial=0) < 0.05


@pytest.mark.parametrize("format", FORMATS)
def test_the_sound_begins_where_it_began(format: SpeechFormat) -> None:
    """The encoder's delay is not heard, but for ADTS."""
    sound = melody(RATE)
    offset, match = alignment(heard(format, sound, streamed=True), sound)
    assert offset == (AAC_FRAME if format == "aac" else 0)
    assert match > 0.95


@pytest.mark.parametrize("format", FORMATS)
def test_two_channels(format: SpeechFormat) -> None:
    sound = melody(RATE, channels=2)
    played, _ = decode(b"".join(encode(format, sound, streamed=True, channels=2)), format, channels=2)
    begin = AAC_FRAME if format == "aac" else 0
    played = (played[::2] if format == "opus" else played)[begin : begin + len(sound)]
    left, right = np.corrcoef(played.T, sound.T)[:2, 2:]
    assert left[0] > 0.99 > 0.5 > left[1]
    assert right[1] > 0.99 > 0.5 > right[0]


# ------------------------------------------------------------------------------------------------- headers, pieces


@pytest.mark.parametrize("format", FORMATS)
def test_pieces_come_while_the_sound_comes(format: SpeechFormat) -> None:
    """A quarter of a second at a time: at no moment is more than a fifth of a second held back."""
    encoder = SoundEncoder(format, RATE, streamed=True)
    ready = b""
    for begin in range(0, 2 * RATE, RATE // 4):
        ready += encoder.push(melody(RATE // 4))
        played, rate = decode(ready, format)
        delay = AAC_FRAME if format == "aac" else 0
        assert len(played) / (rate or RATE) > (begin + RATE // 4 - RATE // 5 + delay) / RATE
    rest = encoder.finish()
    assert len(rest) < len(ready) / 5


@pytest.mark.parametrize("format", FORMATS)
def test_a_whole_file_comes_at_the_end(format: SpeechFormat) -> None:
    *pieces, file = encode(format, melody(5000), streamed=False)
    assert not any(pieces)
    assert file


@pytest.mark.parametrize("streamed", [True, False])
def test_sizes_in_wav_headers(streamed: bool) -> None:
    file = b"".join(encode("wav", melody(1000), streamed=streamed))
    sizes = [int.from_bytes(file[at : at + 4], "little") for at in (4, 40)]
    assert len(file) == 44 + 2000
    assert sizes == ([0xFFFFFFFF] * 2 if streamed else [36 + 2000, 2000])


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("format", ["mp3", "opus", "wav"])
def test_libsndfile_reads_them_too(format: SpeechFormat, streamed: bool) -> None:
    """Another decoder than FFmpeg's. It plays the delay of an MP3 stream: it heeds it where it knows the length."""
    sound = melody(RATE)
    played, rate = soundfile.read(BytesIO(b"".join(encode(format, sound, streamed=streamed))))
    assert rate == RATE
    late = 1105 if format == "mp3" and streamed else 0
    assert late <= len(played) - len(sound) < late + (MP3_FRAME if late else 1)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_no_sound_is_a_valid_file(format: SpeechFormat, streamed: bool) -> None:
    file = SoundEncoder(format, RATE, streamed=streamed).finish()
    played, rate = decode(file, format)
    assert rate in (RATE, 48000, 0)
    assert np.abs(played).max(initial=0) < 0.001
    assert len(played) == 0 or format in ("mp3", "opus", "aac")


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_sound_is_the_same_file(format: SpeechFormat) -> None:
    assert encode(format, melody(5000), streamed=True) == encode(format, melody(5000), streamed=True)


def test_too_loud_samples_are_clipped() -> None:
    loud = np.array([2.0, -3.0, 0.5], np.float32)
    assert heard("pcm", loud, streamed=False).tolist() == pytest.approx([1, -1, 0.5], abs=1e-4)


def test_a_wrong_number_of_channels() -> None:
    with pytest.raises(ValueError, match="reshape"):
        SoundEncoder("wav", RATE, channels=2, streamed=False).push(np.zeros(3, np.float32))


# ------------------------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize(("format", "rate"), [(format, rate) for format in RATES for rate in RATES[format]])
def test_every_rate_that_a_format_carries(format: SpeechFormat, rate: int) -> None:
    sound = melody(rate // 5, rate)
    played, file_rate = decode(b"".join(encode(format, sound, streamed=True, rate=rate)), format)
    assert file_rate == (48000 if format == "opus" else rate)
    assert len(played) / file_rate == pytest.approx(0.2, abs=0.4 if format == "aac" else 0.1)


def test_a_rate_that_the_format_lacks_becomes_the_next_higher_one() -> None:
    assert [carried_rate("opus", rate) for rate in (22050, 44100, 96000)] == [24000, 48000, 48000]
    assert carried_rate("flac", 22050) == 22050
    sound = melody(22050, 22050)
    assert len(heard("opus", sound, streamed=True, rate=22050)) == 24000


def test_the_rate_that_was_wanted() -> None:
    played, rate = decode(b"".join(encode("wav", melody(RATE), streamed=True, file_rate=8000)), "wav")
    assert (len(played), rate) == (8000, 8000)
    with pytest.raises(ValueError, match="opus cannot carry 44100 Hz, only 8000, "):
        SoundEncoder("opus", RATE, streamed=True, file_rate=44100)


def test_resampling_in_pieces_is_resampling() -> None:
    sound = melody(10_007)
    resampler = Resampler(24000, 44100)
    parts = [resampler.push(part.reshape(-1, 1)) for part in np.split(sound, [100, 100, 5000])]
    pieces = np.concatenate([*parts, resampler.finish()])[:, 0]
    whole = resample(sound, 24000, 44100)
    assert len(pieces) == len(whole) == round(10_007 * 44100 / 24000)
    assert np.abs(pieces - whole).max() < 1e-4
    assert resample(sound, 24000, 24000) is sound
