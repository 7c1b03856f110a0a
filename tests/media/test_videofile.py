"""Files of videos hold the frames that were pushed, as many and as fast, whole and in fragments."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace

from app.media.encode import Pixels
from app.media.videofile import VideoFile

WIDTH, HEIGHT = 96, 64
BT709 = 1


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def film(frames: int = 9, width: int = WIDTH, height: int = HEIGHT) -> list[Pixels]:
    """Slow changes of all colours: compression takes little of them."""
    y, x = np.mgrid[0:height, 0:width]
    shapes = [(x + 2 * time) / width + (0, y / height)[part % 2] for time in range(frames) for part in (0, 1, 0)]
    waves = 127 + 100 * np.sin(np.array(shapes).reshape(frames, 3, height, width) + np.arange(3)[:, None, None])
    return list(waves.round().astype(np.uint8).transpose(0, 2, 3, 1))


def written(film: list[Pixels], fps: float = 16, *, fragmented: bool = False, borrowed: bool = False) -> list[bytes]:
    """What comes of pushes of 1, 4, 4, ... frames, and the end."""
    file = VideoFile(fps, fragmented=fragmented, borrowed=borrowed)
    cuts = [0, *range(1, len(film), 4), len(film)]
    return [*(file.push(film[start:end]) for start, end in pairwise(cuts)), file.finish()]


def decoded(data: bytes) -> list[av.VideoFrame]:
    with av.open(BytesIO(data)) as container:
        return list(container.decode(video=0))


def as_shown(frame: av.VideoFrame) -> Pixels:
    colours = {"src_colorspace": Colorspace.ITU709, "src_color_range": ColorRange.MPEG}
    shown: Pixels = frame.reformat(format="rgb24", **colours).to_ndarray()
    return shown


def rate(data: bytes) -> Fraction:
    with av.open(BytesIO(data)) as container:
        (stream,) = container.streams
        assert isinstance(stream, av.VideoStream)
        times = [packet.pts * packet.time_base for packet in container.demux(stream) if packet.pts is not None]
    (step,) = {later - sooner for sooner, later in pairwise(sorted(times))}
    assert stream.average_rate == 1 / step
    return Fraction(1 / step)


@pytest.mark.parametrize("borrowed", [False, True])
@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize(("width", "height", "format"), [(WIDTH, HEIGHT, "yuv420p"), (51, 33, "yuv444p")])
def test_a_file_holds_its_frames(width: int, height: int, format: str, fragmented: bool, borrowed: bool) -> None:
    pushed = film(width=width, height=height)
    data = b"".join(written(pushed, fragmented=fragmented, borrowed=borrowed))
    frames = decoded(data)
    assert len(frames) == len(pushed)
    difference = np.array([as_shown(frame) for frame in frames]).astype(int) - np.array(pushed)
    assert np.abs(difference).mean() < 3
    assert rate(data) == 16
    stored = frames[-1]
    assert (stored.format.name, stored.width, stored.height) == (format, width, height)
    assert (stored.colorspace, stored.color_range) == (Colorspace.ITU709, ColorRange.MPEG)
    assert (stored.color_primaries, stored.color_trc) == (BT709, BT709)


def test_what_is_pushed_stays_as_it_is() -> None:
    pushed = film(3)
    for frame in pushed:
        frame.flags.writeable = False
    written(pushed, borrowed=True)
    np.testing.assert_array_equal(pushed, film(3))


def test_pixels_with_transparency_lose_that() -> None:
    pushed = film(3)
    clear = [np.concatenate([frame, np.zeros_like(frame[..., :1])], axis=-1) for frame in pushed]
    assert b"".join(written(clear)) == b"".join(written(pushed))


def test_a_whole_file_begins_with_what_players_need_first() -> None:
    *before, data = written(film())
    assert before == [b""] * len(before)
    assert data.index(b"moov") < data.index(b"mdat")


def test_fragments_can_be_played_before_the_last_has_come() -> None:
    pieces = written(film(13), fragmented=True)
    assert all(pieces)
    shown = [len(decoded(b"".join(pieces[:count]))) for count in range(1, len(pieces) + 1)]
    # How long a frame is shown is known when the next one comes.
    assert shown == [0, 4, 8, 12, 13]


@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize(
    ("fps", "expected"), [(23.976, Fraction(2997, 125)), (24000 / 1001, Fraction(24000, 1001)), (12.5, Fraction(25, 2))]
)
def test_rates_that_are_no_whole_number(fps: float, expected: Fraction, fragmented: bool) -> None:
    assert rate(b"".join(written(film(), fps, fragmented=fragmented))) == expected


@pytest.mark.parametrize("frames", [0, 3])
def test_a_file_that_is_given_up_leaves_nothing(frames: int, directory: Path) -> None:
    for fragmented in (False, True):
        file = VideoFile(16, fragmented=fragmented)
        file.push(film(frames) if frames else [])
        assert len(list(directory.iterdir())) == (not fragmented and frames > 0)
        file.close()
        file.close()
        assert list(directory.iterdir()) == []


def test_a_finished_file_leaves_nothing(directory: Path) -> None:
    assert written(film(5))[-1]
    assert list(directory.iterdir()) == []


class Slow(list[Pixels]):
    """Frames of which the second comes when `go` is set."""

    def __init__(self, frames: list[Pixels]) -> None:
        super().__init__(frames)
        self.inside, self.go = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Pixels]:
        first, *rest = list.__iter__(self)
        yield first
        self.inside.set()
        assert self.go.wait(10)
        yield from rest


@pytest.mark.parametrize("fragmented", [False, True])
def test_closing_waits_for_the_frames_that_are_being_encoded(fragmented: bool, directory: Path) -> None:
    """FFmpeg would crash, and the replica with it."""
    file, frames = VideoFile(16, fragmented=fragmented), Slow(film(3))
    with ThreadPoolExecutor(2) as threads:
        pushing = threads.submit(file.push, frames)
        assert frames.inside.wait(10)
        closing = threads.submit(file.close)
        with pytest.raises(TimeoutError):
            closing.result(0.1)
        frames.go.set()
        pushing.result(10)
        closing.result(10)
    assert list(directory.iterdir()) == []
    for late in (lambda: file.push(film(1)), file.finish):
        with pytest.raises(ValueError, match="is closed"):
            late()
