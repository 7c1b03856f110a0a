"""What a model goes on from that has no voice of its own: a recording, or the first thing that it has said itself."""

from __future__ import annotations

import msgspec
import numpy as np

from app.engines.speech.family import Manner, Samples


class Anchor(msgspec.Struct):
    """Text and the sound of it. Without one, each sentence would be spoken by somebody else."""

    text: str = ""
    sound: Samples | None = None

    def keep(self, text: str, sound: Samples) -> None:
        """Take the first sentence that has any sound."""
        if self.sound is None and len(sound):
            self.text, self.sound = text, np.ascontiguousarray(sound)


def anchor_of(manner: Manner) -> Anchor:
    """The recording of a request that carries one, else nothing yet."""
    reference = manner.reference
    return Anchor(reference.text.strip(), reference.recording) if reference else Anchor()
