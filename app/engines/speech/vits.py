"""VITS and MMS-TTS of transformers: one forward pass from text to sound, with one speaker or many."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import torch
from transformers import AutoTokenizer, VitsModel

from app.engines.soundusage import TOKEN_S
from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.engines.speech.torchmodel import Caller, load_model
from app.protocol.speechtask import SpeechCard

_SPEEDS = [0.25, 2.0]
"""Beyond these a sentence does not become as long as its speed says: each token has a shortest length."""
_NEEDS = {
    "is_uroman": ("uroman", "romanizes the text of this language", "pip install uroman"),
    "phonemize": (
        "phonemizer",
        "turns text into the phonemes it reads",
        "pip install phonemizer, and install espeak-ng",
    ),
}
"""What the tokenizer's settings need: a package, what for, and how to get it."""

Scale = Annotated[float, msgspec.Meta(ge=0, le=10)]


class VitsSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the voice and the lengths of its sounds vary; None: as the checkpoint says."""

    noise_scale: Scale | None = None
    noise_scale_duration: Scale | None = None


class VitsSpeaker:
    """Implements app.engines.speech.family.Speaker."""

    def __init__(self, family: VitsSynthesizer, manner: Manner) -> None:
        self.text_tokens = 0
        self._family = family
        self._manner = manner

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece; none where the model knows no character of the sentence."""
        ids = self._family.tokenizer(sentence, return_tensors="pt")["input_ids"]
        if ids.shape[1] < 2:  # nothing, or the blank that stands around characters
            return
        self.text_tokens += ids.shape[1]
        yield self._family.say(ids, self._manner, seed, step)


class VitsSynthesizer:
    """Implements app.engines.speech.family.Synthesizer. Speakers are numbers; the checkpoints name none of them."""

    sampling = VitsSampling
    parallel = False
    token_s = TOKEN_S
    max_sentence_chars = 300

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._model = model
        self._caller = Caller(model.text_encoder, model.duration_predictor, model.flow, model.decoder)
        self._many = model.config.num_speakers > 1
        language = getattr(tokenizer, "language", None)
        self.card = SpeechCard(
            family="vits",
            voices=[str(number) for number in range(model.config.num_speakers)] if self._many else ["default"],
            default_voice="0" if self._many else "default",
            sample_rate=model.config.sampling_rate,
            speeds=_SPEEDS,
            languages=[language] if language else [],
        )

    def begin(self, manner: Manner) -> VitsSpeaker:
        return VitsSpeaker(self, manner)

    def say(self, ids: torch.Tensor, manner: Manner, seed: int, step: Step) -> Samples:
        """The sound of the tokens `ids`, of the shape (1, n)."""
        model, config, sampling = self._model, self._model.config, manner.sampling
        model.noise_scale = config.noise_scale if sampling.noise_scale is None else sampling.noise_scale
        duration = sampling.noise_scale_duration
        model.noise_scale_duration = config.noise_scale_duration if duration is None else duration
        speaker = int(manner.voice) if self._many else None

        def call() -> torch.Tensor:
            rate = config.speaking_rate * manner.speed
            sound: torch.Tensor = model(ids.to(model.device), speaker_id=speaker, speaking_rate=rate).waveform
            return sound

        return self._caller.call(call, seed, step)


def load(model: str, options: SpeechOptions) -> VitsSynthesizer:
    """
    Raises:
        ValueError: its tokenizer needs a package that is not installed.
        OSError: a file of the model is missing or broken.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=options.trust_remote_code)
    for setting, (package, purpose, remedy) in _NEEDS.items():
        if getattr(tokenizer, setting, False) and importlib.util.find_spec(package) is None:
            raise ValueError(f"this model's tokenizer needs the package {package}, which {purpose}: {remedy}")
    return VitsSynthesizer(load_model(VitsModel, model, options, small=True), tokenizer)
