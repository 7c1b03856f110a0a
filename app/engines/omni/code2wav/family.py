"""What a family of vocoders is to the engine: the one contract of app/engines/omni/code2wav/<family>.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.engines.speech.family import Samples
from app.protocol.speechtask import SpeechCard

Codes: TypeAlias = NDArray[np.int32]
"""Codec frames, of the shape (n,), or (n, groups) where a frame has several codes."""

Step: TypeAlias = Callable[[], None]
"""To be called often, between pieces of work: it counts them, and raises AbandonedError when nobody listens."""


class Decoding(Protocol):
    """The codes of one request on their way to sound."""

    def push(self, codes: Codes) -> None:
        """Add the next ones."""
        ...

    def finish(self) -> None:
        """There are no more."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the next piece of sound can be made: enough codes are here, or no more will come."""
        ...

    @property
    def size(self) -> int:
        """Frames that the next piece is made of."""
        ...


D = TypeVar("D", bound=Decoding)


class Vocoder(Protocol[D]):
    """A loaded model. `frame_shape` is that of a codec frame, () or (groups,), of codes below `codes`.

    `token_s`: seconds of sound in a frame, which counts as an audio token. `largest`: frames that a stream's largest
    piece is made of.
    """

    card: SpeechCard
    frame_shape: tuple[int, ...]
    codes: int
    token_s: float
    largest: int

    def begin(self, voice: str, seed: int, streamed: bool) -> D:
        """A request with a voice of the card. One that is streamed is ready for its first piece early."""
        ...

    def decode(self, batch: Sequence[D], step: Step) -> list[Samples]:
        """The next piece of each, all of which are ready. What a piece sounds like does not depend on the others.

        It is empty for one that takes several turns; that stays ready.

        One that fails leaves every decoding as it was.

        Raises:
            AbandonedError: `step` did.
            RuntimeError: the device has too little memory, or failed.
        """
        ...
