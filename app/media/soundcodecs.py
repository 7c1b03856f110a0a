"""MP3, Opus, AAC and FLAC files by PyAV, their bytes as soon as they are ready. Computes; replicas only."""

from __future__ import annotations

from io import SEEK_CUR, SEEK_SET, BytesIO
from typing import Any, Literal

import av
import msgspec
import numpy as np
from av.codec.context import Flags

Samples = np.ndarray[Any, np.dtype[np.float32]]


class _Codec(msgspec.Struct, frozen=True):
    """How a format is written. `empty`: whether a file can have no sound at all."""

    container: str
    name: str
    options: dict[str, str] = {}
    container_options: dict[str, str] = {}
    stream_options: dict[str, str] = {}
    max_bits_per_s: int = 1 << 30
    empty: bool = False


_CODECS = {
    # The next steps of quality take two to four times as long, and nobody hears them in speech.
    "mp3": _Codec("mp3", "libmp3lame", {"compression_level": "7"}, {"id3v2_version": "0"}),
    "opus": _Codec(
        "ogg",
        "libopus",
        {"compression_level": "5"},
        stream_options={"page_duration": "40000"},  # in microseconds; Ogg's own choice is to send once a second
        max_bits_per_s=64_000,
    ),
    "aac": _Codec("adts", "aac", {"aac_coder": "fast"}),
    "flac": _Codec("flac", "flac", container_options={"metadata_header_padding": "0"}, empty=True),
}
_BITS_PER_SAMPLE = 8 / 3
"""64 kbit/s for a voice at 24 kHz."""


class CodedFile:
    """One file that is being written. A streamed one does not say how long it is."""

    def __init__(
        self, format: Literal["mp3", "opus", "aac", "flac"], rate: int, channels: int, *, streamed: bool
    ) -> None:
        codec = _CODECS[format]
        self._rate, self._empty = rate, codec.empty
        self._layout = "mono" if channels == 1 else "stereo"
        self._written = 0
        self._file: _Pieces | _Whole = _Pieces() if streamed else _Whole()
        options = {"fflags": "+bitexact"} | codec.container_options  # the same sound is the same file
        if streamed:
            options |= {"flush_packets": "1"} | codec.stream_options
        self._container = av.open(self._file, "w", format=codec.container, options=options)
        self._stream = self._container.add_stream(codec.name, rate=rate, layout=self._layout, options=codec.options)
        self._stream.codec_context.flags |= Flags.bitexact
        self._stream.bit_rate = min(int(rate * _BITS_PER_SAMPLE), codec.max_bits_per_s) * channels
        self._container.start_encoding()
        self._head = self._file.take()
        if format == "mp3" and streamed:
            self._head = _without_length(self._head)

    def write(self, samples: Samples) -> bytes:
        """Add (n, channels); what is ready of the file."""
        if len(samples):
            planes = np.ascontiguousarray(np.clip(samples, -1, 1).T)
            frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=self._layout)
            frame.sample_rate, frame.pts = self._rate, self._written
            self._written += len(samples)
            self._container.mux(self._stream.encode(frame))
        head, self._head = self._head, b""
        return head + self._file.take()

    def close(self) -> bytes:
        """The rest."""
        head = b""
        if not self._written and not self._empty:
            head = self.write(np.zeros((1, 1 if self._layout == "mono" else 2), np.float32))
        for packet in self._stream.encode(None):
            if packet.pts is None or packet.pts < self._written:  # LAME adds a frame that lies behind the sound
                self._container.mux(packet)
        self._container.close()
        return head + self._head + self._file.rest()


class _Whole(BytesIO):
    """Everything, when it is complete."""

    def take(self) -> bytes:
        return b""

    def rest(self) -> bytes:
        return self.getvalue()


class _Pieces:
    """What can be sent: each byte as it is written first. What a muxer goes back for and corrects, at the end, is lost.

    It must be able to seek all the same: only then does the MP3 muxer write the frame that tells the encoder's delay.
    """

    def __init__(self) -> None:
        self._ready = bytearray()
        self._end = self._position = 0

    def write(self, data: bytes) -> int:
        if self._position == self._end:
            self._ready += data
            self._end += len(data)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = 0 if whence == SEEK_SET else self._position if whence == SEEK_CUR else self._end
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        data = bytes(self._ready)
        self._ready.clear()
        return data

    rest = take


_XING = 8 + 112 + 36
"""Bytes of an Xing header: name and flags; lengths, a table of 100 positions and the quality; LAME's part."""
_MP3_DELAY = 576
"""Samples that LAME puts before the sound. A decoder adds 529 of its own, and knows them."""


def _without_length(frame: bytes) -> bytes:
    """An MP3 file's first frame with an Xing header that says only what is known at the beginning: the delay.

    What has been written is a form to be filled in at the end: lengths of 0 and no delay.
    """
    lame = b"Lavf".ljust(21, b"\0") + (_MP3_DELAY << 12).to_bytes(3, "big")
    place = frame.index(b"Xing")
    return frame[:place] + (b"Info" + bytes(4) + lame).ljust(_XING, b"\0") + frame[place + _XING :]
