"""Qwen3-Omni's code2wav: frames of 16 codes at 12.5 a second to sound, piece by piece and as good as in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from app.engines.device import compute_device
from app.engines.omni.code2wav.causal import Causal, Past
from app.engines.omni.code2wav.family import Step
from app.engines.omni.code2wav.frames import Chunks, Frames, choose_chunks
from app.engines.omni.code2wav.loading import load_part
from app.engines.omni.code2wav.options import Code2WavOptions
from app.engines.omni.speakers import SAMPLE_RATE, qwen3_speakers
from app.engines.speech.family import Samples
from app.protocol.speechtask import SpeechCard

_FIRST = 4
_LARGEST = 25
_WHOLE = 100
"""Frames that are decoded at once where nobody listens yet: eight seconds, which bounds the memory that it takes."""


class Utterance(Frames):
    """Implements app.engines.omni.code2wav.family.Decoding."""

    def __init__(self, chunks: Chunks, past: Past) -> None:
        super().__init__(chunks, streamed=True)
        self.past = past


class Qwen3Vocoder:
    """Implements app.engines.omni.code2wav.family.Vocoder. A token of sound is a frame. Nothing here is random."""

    def __init__(self, model: Any, voices: list[str], options: Code2WavOptions) -> None:
        self._model = Causal(model)
        self.frame_shape = (self._model.groups,)
        self.codes = model.config.codebook_size
        self.token_s = self._model.hop / SAMPLE_RATE
        self.chunks = choose_chunks(options, first=_FIRST, largest=_LARGEST, context=self._model.reach, unit=1)
        self.largest = self.chunks.largest
        whole = max(_WHOLE, self.chunks.largest)
        self._whole = Chunks(first=whole, largest=whole, context=self.chunks.context, ahead=0)
        self.card = SpeechCard(family="Qwen3-Omni", voices=voices, default_voice=voices[0], sample_rate=SAMPLE_RATE)

    def begin(self, voice: str, seed: int, streamed: bool) -> Utterance:
        return Utterance(self.chunks if streamed else self._whole, self._model.start())

    def decode(self, batch: Sequence[Utterance], step: Step) -> list[Samples]:
        codes = [torch.tensor(utterance.codes[utterance.made : utterance.end]) for utterance in batch]
        pasts = [utterance.past for utterance in batch]
        sounds, after = self._model.sounds(codes, pasts, self.chunks.context, step)
        for utterance, past in zip(batch, after, strict=True):
            utterance.past = past
            utterance.made = utterance.end
        return sounds


def load(directory: Path, options: Code2WavOptions) -> Qwen3Vocoder:
    """
    Raises:
        ValueError: the checkpoint lacks something, or an option cannot be had with it.
        OSError: a file of it is missing or broken.
    """
    config = Qwen3OmniMoeConfig.from_pretrained(directory, local_files_only=True)
    voices = list(qwen3_speakers(directory, config.talker_config))
    device = compute_device(options.device)
    model = load_part(Qwen3OmniMoeCode2Wav, config.code2wav_config, directory, "code2wav.", options, device)
    return Qwen3Vocoder(model, voices, options)
