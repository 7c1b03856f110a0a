"""Pipelines that make videos: how many frames a class makes, and how fast they are meant to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_COUNTS = ("num_frames", "video_length", "frames")
"""What classes of diffusers call the number of frames of a video."""
_RATES = ("frame_rate", "fps", "target_fps")
"""What those call their rate that are told of it."""

_FPS = {
    "AnimateDiff": 8.0,
    "AnyFlow": 16.0,
    "Allegro": 15.0,
    "ChronoEdit": 16.0,
    "CogVideoX": 8.0,
    "ConsisID": 8.0,
    "Cosmos2_5": 16.0,
    "EasyAnimate": 8.0,
    "Helios": 16.0,
    "Latte": 8.0,
    "LucyEdit": 24.0,
    "Mochi": 30.0,
    "PIA": 8.0,
    "Sana": 16.0,
    "TextToVideo": 8.0,
    "Wan": 16.0,
}
"""By the beginning of the class's name: the rate of the videos that its model has learned from."""
_USUAL_FPS = 24.0


class Video(msgspec.Struct, frozen=True):
    """Of a class: its arguments for the number of frames and for their rate, "" where it is told none.

    `frames` where no other number is asked for, 0: only the pipeline knows; `fps` likewise, in frames a second. There
    is one frame more than a multiple of `step`.
    """

    count: str
    rate: str
    frames: int
    fps: float
    step: int

    def nearest(self, frames: float) -> int:
        """The number of frames nearest to that many that can be made."""
        return max(round((frames - 1) / self.step), 0) * self.step + 1


def video_of(
    class_name: str, call: Mapping[str, Any], configured: Mapping[str, Any], step: int, *, faster: bool = False
) -> Video | None:
    """Of a class whose call has arguments with these defaults, on a server `configured` so; None: it makes no videos.

    `faster`: its model has learned from faster videos than others of that name.

    Raises:
        ValueError: the configured number of frames is none that it makes.
    """
    count = next((name for name in _COUNTS if name in call), "")
    if not count:
        return None
    rate = next((name for name in _RATES if name in call), "")
    known = next((fps for name, fps in _FPS.items() if class_name.startswith(name) and not faster), _USUAL_FPS)
    video = Video(
        count=count,
        rate=rate,
        frames=configured.get(count) or call[count] or 0,
        fps=float(configured.get(rate) or call.get(rate) or known),
        step=step,
    )
    asked = configured.get(count)
    if isinstance(asked, int) and asked != video.nearest(asked):
        raise ValueError(
            f"{count} among the sampling defaults: {class_name} makes one frame more than a multiple of {step}, such "
            f"as {video.nearest(asked)}, not {asked}"
        )
    return video
