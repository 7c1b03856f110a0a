"""What a family of text-to-speech models is to the engine: the one contract of app/engines/speech/<family>.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.protocol.speechtask import SpeechCard

Samples: TypeAlias = NDArray[np.float32]
"""Sound of one channel in -1..1, of the shape (n,)."""

Step: TypeAlias = Callable[[], None]
"""To be called often, between pieces of work: it counts them, and raises AbandonedError when nobody listens."""


class AbandonedError(Exception):
    """Nobody wants this sound any more; raised inside of the model to leave it."""


class Reference(msgspec.Struct, frozen=True, eq=False):
    """A voice to imitate: a recording at the model's sample rate with its transcript ("" where none is given), or the
    embedding of a speaker, of the shape (size,).
    """

    recording: Samples | None = None
    text: str = ""
    embedding: NDArray[np.float32] | None = None


class Manner(msgspec.Struct, frozen=True, eq=False):
    """How a request wants its text spoken, judged: all of it is what the model has.

    `voice` is one of the card's, "" only with a reference; `sampling` is an object of the family's sampling class.
    """

    voice: str
    speed: float
    reference: Reference | None
    sampling: Any


class Speaker(Protocol):
    """The voice of one request; it may remember what it has said. One sentence is spoken at a time.

    `text_tokens` counts the tokens of text that the model has read so far.
    """

    text_tokens: int

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """The sound of a sentence, in pieces as they are made. White space is single, the ends have none.

        The same seed gives the same sound, whatever else the engine speaks. Runs on an engine's thread.

        Raises:
            AbandonedError: `step` did.
            EngineError: the sentence cannot be spoken.
        """
        ...


class Synthesizer(Protocol):
    """A loaded model. `sampling` is the class of its sampling parameters, a msgspec struct in which all is optional.

    `parallel`: several threads may use it at once. `token_s`: seconds of sound in an audio token.
    """

    card: SpeechCard
    sampling: type[msgspec.Struct]
    parallel: bool
    token_s: float
    max_sentence_chars: int

    def begin(self, manner: Manner) -> Speaker:
        """A voice for one request; cheap.

        Raises:
            EngineError: 400, the manner asks for what the model has not.
        """
        ...
