"""A video as a file: H.264 in MP4, whole, or in fragments that play while later ones are made. Replicas only."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace

from app.media.encode import Pixels

_CODEC = {"preset": "veryfast", "crf": "18"}
_FRAGMENTS = "frag_every_frame+empty_moov+default_base_moof"
_BT709 = 1
"""In H.264's tables of colours: what players take for granted at these sizes, said so that none has to guess."""


class VideoFile:
    """One file. `finish` or `close` has to be called at last; no method minds which thread it is called on."""

    def __init__(self, fps: float, *, fragmented: bool, borrowed: bool = False) -> None:
        """`fps`: frames a second. `borrowed`: frames are read where they lie, in place of being copied."""
        self._rate = Fraction(fps).limit_denominator(1001)
        self._borrowed = borrowed
        self._pieces = _Pieces() if fragmented else None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._container: Any = None
        self._stream: Any = None
        self._closed = False
        self._lock = threading.Lock()
        """FFmpeg crashes where a file is closed in the middle of a frame."""

    def push(self, frames: Sequence[Pixels]) -> bytes:
        """Further frames, each height x width x 3; what of a file in fragments can go out now.

        Raises:
            ValueError: the file is closed.
        """
        with self._lock:
            return self._push(frames)

    def finish(self) -> bytes:
        """The rest of the file, or the whole one. There has to be a frame in it.

        Raises:
            ValueError: the file is closed.
        """
        with self._lock:
            self._check_open()
            try:
                self._container.mux(self._stream.encode(None))
                self._container.close()
                return self._pieces.take() if self._pieces is not None else self._path.read_bytes()
            finally:
                self._close()

    def close(self) -> None:
        """Give up what `finish` has not been called for, after the frames that are just being encoded."""
        with self._lock:
            self._close()

    def _push(self, frames: Sequence[Pixels]) -> bytes:
        self._check_open()
        for pixels in frames:
            taken = np.ascontiguousarray(pixels[..., :3])
            if self._container is None:
                self._open(*taken.shape[:2])
            build = av.VideoFrame.from_numpy_buffer if self._borrowed else av.VideoFrame.from_ndarray
            frame = build(taken, "rgb24").reformat(
                format=self._stream.pix_fmt, dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
            self._container.mux(self._stream.encode(frame))
        return self._pieces.take() if self._pieces is not None else b""

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the file is closed")

    def _open(self, height: int, width: int) -> None:
        fragmented = self._pieces is not None
        if not fragmented:  # what is known last stands first in the file, so it is written on a disk and then once more
            self._directory = tempfile.TemporaryDirectory(prefix="video")
        flags = {"movflags": _FRAGMENTS if fragmented else "faststart"}
        self._container = av.open(self._pieces or str(self._path), "w", format="mp4", options=flags)
        codec = _CODEC | ({"tune": "zerolatency"} if fragmented else {})
        self._stream = self._container.add_stream("libx264", rate=self._rate, options=codec)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv444p" if width % 2 or height % 2 else "yuv420p"
        context = self._stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = ColorRange.MPEG

    def _close(self) -> None:
        self._closed = True
        if self._container is not None:
            self._container.close()
        if self._directory is not None:
            self._directory.cleanup()

    @property
    def _path(self) -> Path:
        assert self._directory is not None, "a file in fragments is on no disk"
        return Path(self._directory.name) / "video.mp4"


class _Pieces:
    """What FFmpeg writes into."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken, self._written = bytes(self._written), bytearray()
        return taken
