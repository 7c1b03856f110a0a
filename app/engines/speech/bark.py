"""Bark of transformers: text to semantic tokens to two and then eight codebooks of Encodec; voices are presets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from transformers import BarkModel, BarkProcessor

from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.engines.speech.torchmodel import Caller, given, load_model
from app.protocol.speechtask import SpeechCard

_FAVOURITE = "v2/en_speaker_6"
_NO_PRESET = "random"
"""The voice of a checkpoint without presets: each sentence may draw another one."""

Temperature = Annotated[float, msgspec.Meta(gt=0, le=10)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]


class BarkSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of BarkModel.generate; None: as the checkpoint says."""

    do_sample: bool | None = None
    temperature: Temperature | None = None
    semantic_temperature: Temperature | None = None
    coarse_temperature: Temperature | None = None
    fine_temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: Probability | None = None
    min_eos_p: Probability | None = None
    semantic_max_new_tokens: Count | None = None


class BarkSpeaker:
    """Implements app.engines.speech.family.Speaker."""

    def __init__(self, family: BarkSynthesizer, preset: str | None, sampling: BarkSampling) -> None:
        self.text_tokens = 0
        self._family = family
        self._preset = preset
        self._arguments = given(sampling)

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece."""
        inputs = self._family.processor(sentence, voice_preset=self._preset)
        self.text_tokens += int(inputs["attention_mask"].sum())
        yield self._family.say(inputs, self._arguments, seed, step)


class BarkSynthesizer:
    """Implements app.engines.speech.family.Synthesizer. A token of sound is a frame of the codec."""

    sampling = BarkSampling
    parallel = False
    max_sentence_chars = 200  # of a sentence that takes longer than about 14 s the end is not spoken

    def __init__(self, model: Any, processor: Any, voices: list[str]) -> None:
        self.processor = processor
        self._model = model
        self._caller = Caller(model.semantic, model.coarse_acoustics, model.fine_acoustics, model.codec_model)
        codec = model.config.codec_config
        self.token_s = codec.hop_length / codec.sampling_rate
        self.card = SpeechCard(
            family="bark",
            voices=voices or [_NO_PRESET],
            default_voice=_FAVOURITE if _FAVOURITE in voices else (voices or [_NO_PRESET])[0],
            sample_rate=model.generation_config.sample_rate,
        )

    def begin(self, manner: Manner) -> BarkSpeaker:
        return BarkSpeaker(self, None if manner.voice == _NO_PRESET else manner.voice, manner.sampling)

    def say(self, inputs: Any, arguments: dict[str, Any], seed: int, step: Step) -> Samples:
        """The sound of what the processor made of a sentence."""
        device = self._model.device

        def call() -> torch.Tensor:
            sound: torch.Tensor = self._model.generate(
                **{name: value.to(device) for name, value in inputs.items()}, **arguments
            )
            return sound

        return self._caller.call(call, seed, step)


def load(model: str, options: SpeechOptions) -> BarkSynthesizer:
    """
    Raises:
        OSError: a file of the model is missing or broken.
    """
    processor = BarkProcessor.from_pretrained(model, local_files_only=True)
    return BarkSynthesizer(load_model(BarkModel, model, options), processor, _voices(processor, Path(model)))


def _voices(processor: Any, directory: Path) -> list[str]:
    """Those of the listed presets whose files are there; presets are often left out of a download."""
    presets = processor.speaker_embeddings or {}
    return [
        name
        for name in processor.available_voice_presets
        if all((directory / file).is_file() for file in presets[name].values())
    ]
