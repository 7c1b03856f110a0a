"""Dia of transformers: dialogue of two speakers in the frames of the DAC codec, which can go on from a recording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import torch
from transformers import DacModel, DiaFeatureExtractor, DiaForConditionalGeneration, DiaProcessor, DiaTokenizer

from app.engines.speech.anchor import Anchor, anchor_of
from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.engines.speech.torchmodel import Caller, companion, given, load_model
from app.protocol.speechtask import SpeechCard

_SPEAKERS = ["S1", "S2"]
_TAG = re.compile(r"\[(S[12])\]")
_LONGEST_S = 30
"""Where a sentence ends that does not end by itself."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class DiaSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of DiaForConditionalGeneration.generate; None: as the checkpoint says. `max_new_tokens`: frames.

    Dia takes no temperature below 1.
    """

    do_sample: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=1, le=10)] | None = None
    top_k: Count | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    guidance_scale: Annotated[float, msgspec.Meta(ge=1, le=20)] | None = None
    max_new_tokens: Count | None = None


class DiaSpeaker:
    """Implements app.engines.speech.family.Speaker. It goes on from its recording, or from its first sentence.

    A text may change the speaker itself by [S1] and [S2]; a sentence without a tag is said by who spoke last.
    """

    def __init__(self, family: DiaSynthesizer, voice: str, anchor: Anchor, sampling: DiaSampling) -> None:
        self.text_tokens = 0
        self._family = family
        self._voice = voice
        self._anchor = anchor
        self._arguments = given(sampling)
        if anchor.text:
            anchor.text = self._tagged(anchor.text)

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece."""
        text = self._tagged(sentence)
        inputs = self._family.inputs(text, self._anchor)
        self.text_tokens += int(inputs["attention_mask"].sum())
        samples = self._family.say(inputs, self._anchor.sound is not None, self._arguments, seed, step)
        self._anchor.keep(text, samples)
        yield samples

    def _tagged(self, text: str) -> str:
        tagged = text if _TAG.match(text) else f"[{self._voice}] {text}"
        self._voice = _TAG.findall(tagged)[-1]
        return tagged


class DiaSynthesizer:
    """Implements app.engines.speech.family.Synthesizer. A token of sound is a frame of the codec."""

    sampling = DiaSampling
    parallel = False
    max_sentence_chars = 250

    def __init__(self, model: Any, processor: Any) -> None:
        self._model, self._processor = model, processor
        codec = processor.audio_tokenizer
        self._caller = Caller(model.model.encoder, model.model.decoder, codec)
        self.token_s = codec.config.hop_length / codec.config.sampling_rate
        self._frames = {"max_new_tokens": round(_LONGEST_S / self.token_s)}
        decoder = model.config.decoder_config
        self._codes = {
            "bos_token_id": decoder.bos_token_id,
            "eos_token_id": decoder.eos_token_id,
            "pad_token_id": decoder.pad_token_id,
            "delay_pattern": model.config.delay_pattern,
        }
        self.card = SpeechCard(
            family="dia",
            voices=_SPEAKERS,
            default_voice=_SPEAKERS[0],
            sample_rate=codec.config.sampling_rate,
            cloning=["transcribed"],
            languages=["en"],
        )

    def begin(self, manner: Manner) -> DiaSpeaker:
        return DiaSpeaker(self, manner.voice or _SPEAKERS[0], anchor_of(manner), manner.sampling)

    def inputs(self, text: str, anchor: Anchor) -> Any:
        """What the model reads: the text, after the anchor's and with its sound where there is one."""
        heard = {}
        if anchor.sound is not None:
            text = f"{anchor.text} {text}"
            heard = {"audio": anchor.sound, "sampling_rate": self.card.sample_rate}
        return self._processor(text=[text], padding=True, return_tensors="pt", **heard, **self._codes)

    def say(self, inputs: Any, goes_on: bool, arguments: dict[str, Any], seed: int, step: Step) -> Samples:
        """The sound of the text, without that of the anchor before it (`goes_on`)."""
        mask = inputs["decoder_attention_mask"]
        heard = self._processor.get_audio_prompt_len(mask, **self._codes) if goes_on else None

        def call() -> torch.Tensor:
            codes = self._model.generate(**inputs.to(self._model.device), **self._frames | arguments)
            sound: torch.Tensor = self._processor.batch_decode(codes, audio_prompt_len=heard, **self._codes)[0]
            return sound

        return self._caller.call(call, seed, step)


def load(model: str, options: SpeechOptions) -> DiaSynthesizer:
    """
    Raises:
        ValueError: its codec is not on this machine.
        OSError: a file of the model is missing or broken.
    """
    extractor = DiaFeatureExtractor.from_pretrained(model, local_files_only=True)
    tokenizer = DiaTokenizer.from_pretrained(model, local_files_only=True)
    dia = load_model(DiaForConditionalGeneration, model, options)
    codec = _codec(model, options).to(dia.device, torch.float32)  # the processor hears in no other type
    return DiaSynthesizer(dia, DiaProcessor(extractor, tokenizer, codec))


def _codec(model: str, options: SpeechOptions) -> Any:
    """The one of the option, or in vocoder/ of the model, or what the checkpoint names and the hub's cache here has."""
    directory = companion(model, options, "vocoder")
    if directory is not None:
        return load_model(DacModel, directory, options, small=True)
    try:
        return DiaProcessor.from_pretrained(model, local_files_only=True).audio_tokenizer
    except (OSError, TypeError) as error:  # it is not in the cache; the checkpoint names none
        message = "put it (descript/dac_44khz) into vocoder/ of the model, or name it with vocoder"
        raise ValueError(f"Dia makes codes and needs the DAC that turns them into sound: {message}") from error
