"""CSM of transformers: a language model over text and frames of the Mimi codec, which goes on from what it heard."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import torch
from transformers import AutoProcessor, CsmForConditionalGeneration

from app.engines.speech.anchor import Anchor, anchor_of
from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.engines.speech.torchmodel import Caller, given, load_model
from app.protocol.speechtask import SpeechCard

_SPEAKERS = [str(number) for number in range(10)]
"""Labels of speakers: whose turn it is, not what they sound like."""
_LONGEST_S = 30
"""Where a sentence ends that does not end by itself; checkpoints say 10 s, which is too short for many."""

Temperature = Annotated[float, msgspec.Meta(gt=0, le=10)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class CsmSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of CsmForConditionalGeneration.generate; None: as the checkpoint says. `max_new_tokens`: frames."""

    do_sample: bool | None = None
    temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    depth_decoder_do_sample: bool | None = None
    depth_decoder_temperature: Temperature | None = None
    depth_decoder_top_k: Count | None = None
    max_new_tokens: Count | None = None


class CsmSpeaker:
    """Implements app.engines.speech.family.Speaker. It goes on from its recording, or from its first sentence."""

    def __init__(self, family: CsmSynthesizer, role: str, anchor: Anchor, sampling: CsmSampling) -> None:
        self.text_tokens = 0
        self._family = family
        self._role = role
        self._anchor = anchor
        self._arguments = given(sampling)

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece."""
        inputs = self._family.inputs(self._turns(sentence))
        self.text_tokens += self._family.text_tokens(inputs)
        samples = self._family.say(inputs, self._arguments, seed, step)
        self._anchor.keep(sentence, samples)
        yield samples

    def _turns(self, sentence: str) -> list[dict[str, Any]]:
        turns = []
        if self._anchor.sound is not None:
            said = [{"type": "text", "text": self._anchor.text}, {"type": "audio", "path": self._anchor.sound}]
            turns.append({"role": self._role, "content": said})
        return [*turns, {"role": self._role, "content": [{"type": "text", "text": sentence}]}]


class CsmSynthesizer:
    """Implements app.engines.speech.family.Synthesizer. A token of sound is a frame of the codec."""

    sampling = CsmSampling
    parallel = False
    max_sentence_chars = 250

    def __init__(self, model: Any, processor: Any) -> None:
        self._model, self._processor = model, processor
        self._caller = Caller(model.backbone_model, model.depth_decoder, model.codec_model)
        self._depth_defaults = copy.deepcopy(model.depth_decoder.generation_config)
        codec = model.config.codec_config
        self.token_s = 1 / codec.frame_rate
        self._codes = codec.codebook_size
        self._frames = {"max_new_tokens": round(_LONGEST_S * codec.frame_rate)}
        self.card = SpeechCard(
            family="csm",
            voices=_SPEAKERS,
            default_voice=_SPEAKERS[0],
            sample_rate=codec.sampling_rate,
            cloning=["transcribed"],
            languages=["en"],
        )

    def begin(self, manner: Manner) -> CsmSpeaker:
        return CsmSpeaker(self, manner.voice or _SPEAKERS[0], anchor_of(manner), manner.sampling)

    def inputs(self, turns: list[dict[str, Any]]) -> Any:
        """What the model reads: the turns of a conversation, the last of them without sound."""
        return self._processor.apply_chat_template(turns, tokenize=True, return_dict=True)

    def text_tokens(self, inputs: Any) -> int:
        """Those that do not stand for sound."""
        return int((inputs["input_ids"] != self._model.config.audio_token_id).sum())

    def say(self, inputs: Any, arguments: dict[str, Any], seed: int, step: Step) -> Samples:
        """The sound of the last turn."""
        model = self._model
        model.depth_decoder.generation_config = copy.deepcopy(self._depth_defaults)  # generate writes arguments into it

        def call() -> torch.Tensor | None:
            codes = model.generate(**inputs.to(model.device, model.dtype), **self._frames | arguments)[0]
            ends = (codes == model.config.codebook_eos_token_id).all(-1).nonzero()
            codes = codes[: int(ends[0])] if len(ends) else codes
            if not len(codes):
                return None
            codes = codes.clamp(max=self._codes - 1)  # padding is a code of the model's, not of the codec's
            sound: torch.Tensor = model.codec_model.decode(codes.T[None]).audio_values
            return sound

        return self._caller.call(call, seed, step)


def load(model: str, options: SpeechOptions) -> CsmSynthesizer:
    """
    Raises:
        OSError: a file of the model is missing or broken.
    """
    processor = AutoProcessor.from_pretrained(model, local_files_only=True, trust_remote_code=options.trust_remote_code)
    return CsmSynthesizer(load_model(CsmForConditionalGeneration, model, options), processor)
