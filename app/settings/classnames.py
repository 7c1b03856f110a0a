"""What a pipeline class of diffusers makes, by its name alone: known before diffusers is imported.

The replica has the last word (its Capabilities); this is for `omni-app config` and for what is said while it loads.
"""

from __future__ import annotations

import re
from typing import Literal

Output = Literal["image", "video", "audio"]

_PATTERNS: tuple[tuple[Output, str], ...] = (
    ("image", r"TextToImage"),
    ("audio", r"Audio|Music|AceStep|DanceDiffusion"),
    (
        "video",
        r"Video|I2V|T2V|TI2V|^Wan|^LTX|AnimateDiff|^PIA|CogVideoX|Mochi|Allegro|Latte|SkyReels|Helios|AnyFlow|ChronoEdit"
        r"|ConsisID|^Cosmos|EasyAnimate|Framepack|LucyEdit|SanaWM|MiniMaxH3|Kandinsky6",
    ),
)


def output_of(class_name: str) -> Output | None:
    """The kind of medium that pipelines of this class make; None for a name that no class of diffusers has."""
    if "Pipeline" not in class_name:
        return None
    return next((output for output, pattern in _PATTERNS if re.search(pattern, class_name)), "image")
