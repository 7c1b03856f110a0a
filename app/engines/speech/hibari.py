"""The demo's voice: the ONNX model in the wheel hibari-tts, on the CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from app.engines.soundusage import TOKEN_S
from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.protocol.speechtask import SpeechCard

_SPEEDS = [0.25, 2.0]
"""Beyond these a sentence does not become as long as its speed says: phonemes have a shortest length."""

_LONG_WORD = re.compile(r"\S{32}(?=\S)")
"""The time for a word grows with the cube of the parts that it has: "a1" 200 times would take more than a minute. And
numbers of more than 36 digits have no names.
"""


class HibariSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """It draws nothing but the noise of consonants, which the seed decides."""


class HibariSpeaker:
    """Implements app.engines.speech.family.Speaker."""

    def __init__(self, voice: Any, speed: float) -> None:
        self.text_tokens = 0
        self._voice = voice
        self._speed = speed

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece for each of the sentences that the voice itself sees in this one."""
        noise = np.random.default_rng(seed)
        step()
        for phonemes in self._voice.phonemize(_readable(sentence)):
            ids = self._voice.ids(phonemes)
            self.text_tokens += len(ids)
            yield self._voice.from_ids(ids, self._speed, noise)
            step()


def _readable(sentence: str) -> str:
    """The same for who listens, without what the voice takes too long to read or fails on."""
    return _LONG_WORD.sub(r"\g<0> ", sentence.replace("İ", "I"))  # the only letter with a small one of two characters


class HibariSynthesizer:
    """Implements app.engines.speech.family.Synthesizer; a phoneme is a token of text."""

    sampling = HibariSampling
    parallel = True
    token_s = TOKEN_S
    max_sentence_chars = 400

    def __init__(self, voices: dict[str, Any], default: str) -> None:
        self._voices = voices
        self.card = SpeechCard(
            family="hibari",
            voices=list(voices),
            default_voice=default,
            sample_rate=next(iter(voices.values())).sample_rate,
            speeds=_SPEEDS,
            languages=["en"],
        )

    def begin(self, manner: Manner) -> HibariSpeaker:
        return HibariSpeaker(self._voices[manner.voice], manner.speed)


def load(model: str, options: SpeechOptions) -> HibariSynthesizer:
    """The voices that the wheel ships; those that it would download are left out.

    Raises:
        ValueError: the wheel is not installed, or has no voice of the default's name.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or onnxruntime writes a device id when it is imported
    try:
        from hibari import Hibari
        from hibari.voices import DEFAULT, VOICES
    except ImportError as error:
        raise ValueError(f"the demo's voice needs the package hibari-tts ({error}): pip install hibari-tts") from None
    shipped = [name for name, voice in VOICES.items() if voice.get("bundled")]
    voices = {name: Hibari(name) for name in shipped}
    for voice in voices.values():
        for _ in voice.stream("Ready, Zyxquil."):  # loads the lexica and the network for unknown words
            pass
    return HibariSynthesizer(voices, DEFAULT)
