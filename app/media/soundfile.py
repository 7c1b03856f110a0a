"""Sound as files of the formats that speech is asked for in, whole or piece by piece. Computes; replicas only."""

from __future__ import annotations

import struct
from typing import Any, Protocol

import numpy as np
import soxr

from app.media.soundcodecs import CodedFile, Samples
from app.protocol.speechtask import SpeechFormat

RATES: dict[SpeechFormat, tuple[int, ...]] = {
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
    "opus": (8000, 12000, 16000, 24000, 48000),
    "aac": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000),
    "flac": (),
    "wav": (),
    "pcm": (),
}
"""The sample rates in Hz that a format can carry; empty: any. Players get Opus at 48000 Hz whatever was encoded."""


def carried_rate(format: SpeechFormat, rate: int) -> int:
    """The rate of a file that is made of sound at `rate` Hz: the same, or the next higher one that the format has."""
    rates = RATES[format]
    return min((carried for carried in rates if carried >= rate), default=rates[-1]) if rates else rate


class Resampler:
    """Sound of float32 (n, channels), which comes in pieces, at another rate in Hz."""

    def __init__(self, from_rate: int, to_rate: int, channels: int = 1) -> None:
        self._stream = None if from_rate == to_rate else soxr.ResampleStream(from_rate, to_rate, channels)
        self._nothing = np.zeros((0, channels), np.float32)

    def push(self, samples: Samples) -> Samples:
        """As much as can be said for sure; the rest comes with later pieces."""
        return samples if self._stream is None else self._resampled(samples, last=False)

    def finish(self) -> Samples:
        """The rest. All together, n samples have become n * to_rate / from_rate, rounded."""
        return self._nothing if self._stream is None else self._resampled(self._nothing, last=True)

    def _resampled(self, samples: Samples, *, last: bool) -> Samples:
        assert self._stream is not None
        result: Samples = self._stream.resample_chunk(samples, last=last)
        return result


def resample(samples: Samples, from_rate: int, to_rate: int) -> Samples:
    """float32 (n,) or (n, channels) at another rate in Hz: n * to_rate / from_rate samples, rounded."""
    result: Samples = samples if from_rate == to_rate else soxr.resample(samples, from_rate, to_rate)
    return result


class SoundEncoder:
    """One sound file, made while the sound comes. `sample_rate` is the file's rate in Hz.

    Decoding gives as many samples as went in (flac, wav and pcm: the same, rounded to 16 bits), and beside them only
    what a format has no place to say. aac begins with 1024 samples of silence and ends with a whole frame of 1024. A
    streamed mp3 ends with a whole frame too (1152 samples, 576 below 32 kHz): where in it the sound ends would stand in
    the file's header. For the same reason a streamed flac file has no length in its header, and a streamed wav file
    sizes of 0xFFFFFFFF, at which players read on to the end. mp3, opus and aac have no empty files: one that got no
    sample has a silent one. Streamed and whole files of the same samples decode to the same samples.

    On one core, a second of sound at 24 kHz takes about 6 ms in mp3, 4 in opus, 3.5 in aac, 0.7 in flac, and next to
    nothing in wav and pcm.
    """

    def __init__(
        self, format: SpeechFormat, sample_rate: int, *, channels: int = 1, streamed: bool, file_rate: int = 0
    ) -> None:
        """Sound comes at `sample_rate` Hz. `file_rate`: the rate that is wanted, 0 for the same.

        Raises:
            ValueError: the format cannot carry `file_rate`.
        """
        self.sample_rate = carried_rate(format, file_rate or sample_rate)
        if file_rate not in (0, self.sample_rate):
            raise ValueError(f"{format} cannot carry {file_rate} Hz, only {', '.join(map(str, RATES[format]))}")
        self._channels = channels
        self._resampler = Resampler(sample_rate, self.sample_rate, channels)
        self._file: _File
        if format == "wav" or format == "pcm":  # not `in`: mypy narrows a Literal by == only
            self._file = _PlainFile(self.sample_rate, channels, header=format == "wav", streamed=streamed)
        else:
            self._file = CodedFile(format, self.sample_rate, channels, streamed=streamed)

    def push(self, samples: Samples) -> bytes:
        """Add float32 samples of -1..1 (beyond: clipped), (n,) or (n, channels); the bytes of the file that are ready.

        A file that is not streamed comes from finish() as a whole.

        Raises:
            ValueError: another number of channels.
        """
        return self._file.write(self._resampler.push(samples.reshape(-1, self._channels)))

    def finish(self) -> bytes:
        """The rest of the file. The encoder is of no use any more."""
        return self._file.write(self._resampler.finish()) + self._file.close()


class _File(Protocol):
    """A file that is being written."""

    def write(self, samples: Samples) -> bytes:
        """Add (n, channels)."""
        ...

    def close(self) -> bytes: ...


_UNKNOWN = 0xFFFFFFFF
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")


class _PlainFile:
    """Samples of 16 bits, little endian: bare, or after the 44 bytes that make a WAV file of them."""

    def __init__(self, rate: int, channels: int, *, header: bool, streamed: bool) -> None:
        self._rate, self._channels, self._has_header, self._streamed = rate, channels, header, streamed
        self._parts = [self._header(_UNKNOWN, _UNKNOWN)] if streamed else []

    def _header(self, file_bytes: int, data_bytes: int) -> bytes:
        if not self._has_header:
            return b""
        frame = 2 * self._channels
        layout = (1, self._channels, self._rate, self._rate * frame, frame, 16)
        return _HEADER.pack(b"RIFF", file_bytes, b"WAVE", b"fmt ", 16, *layout, b"data", data_bytes)

    def write(self, samples: Samples) -> bytes:
        self._parts.append(_to_16_bits(samples).tobytes())
        return self._taken() if self._streamed else b""

    def close(self) -> bytes:
        if not self._streamed:
            size = sum(map(len, self._parts))
            self._parts.insert(0, self._header(_HEADER.size - 8 + size, size))
        return self._taken()

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _to_16_bits(samples: Samples) -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2")
