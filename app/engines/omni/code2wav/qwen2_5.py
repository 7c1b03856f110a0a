"""Qwen2.5-Omni's token2wav: codes at 50 a second to spectra by flow matching, and these to sound by BigVGAN."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniToken2WavModel

from app.engines.device import compute_device
from app.engines.omni.code2wav.bigvgan import BigVgan, Spectrum
from app.engines.omni.code2wav.family import Step
from app.engines.omni.code2wav.flow import Flow, Solution, Window
from app.engines.omni.code2wav.frames import Chunks, Frames, choose_chunks
from app.engines.omni.code2wav.loading import load_part
from app.engines.omni.code2wav.options import Code2WavOptions
from app.engines.omni.speakers import SAMPLE_RATE, qwen2_5_speakers
from app.engines.speech.family import Samples
from app.protocol.speechtask import SpeechCard

_LARGEST = 8
_AHEAD = 2
"""Blocks in a piece of a stream, and blocks after it that are looked at: each makes the difference to a whole
utterance's spectrum some sixty times smaller; with two the sound of a piece has all that BigVGAN looks at, too.
"""


class Utterance(Frames):
    """Implements app.engines.omni.code2wav.family.Decoding.

    `path`: what the last blocks that became sound were at each evaluation, for the next window, which begins with them.
    `tail`: the last frames of their spectrum. `solution`: of a whole that is made a step at a time.
    """

    def __init__(self, chunks: Chunks, streamed: bool, voice: int, seed: int, mels: int) -> None:
        super().__init__(chunks, streamed)
        self.voice = voice
        self.path: torch.Tensor | None = None
        self.tail = torch.zeros(0, mels)
        self.solution: Solution | None = None
        self._numbers = torch.Generator().manual_seed(seed)
        self._noise = torch.zeros(0, mels)
        self._begin = 0

    def noise(self, begin: int, end: int) -> torch.Tensor:
        """Of the frames `begin` to `end` of the spectrum; earlier ones are not asked for any more.

        It is drawn on the CPU, where what comes first does not depend on how much is drawn: it is the same noise for
        a stream and for the whole, and on every device.
        """
        missing = end - self._begin - len(self._noise)
        if missing > 0:
            drawn = torch.randn(missing, self._noise.shape[1], generator=self._numbers)
            self._noise = torch.cat((self._noise, drawn))
        self._noise, self._begin = self._noise[begin - self._begin :], begin
        return self._noise[: end - begin]


class Qwen25Vocoder:
    """Implements app.engines.omni.code2wav.family.Vocoder. A token of sound is a code."""

    frame_shape = ()

    def __init__(self, model: Any, speakers: dict[str, Any], options: Code2WavOptions) -> None:
        voices = list(speakers)
        dit = model.code2wav_dit_model
        self._flow = Flow(dit, [(speaker["cond"], speaker["ref_mel"]) for speaker in speakers.values()])
        self._bigvgan = BigVgan(model.code2wav_bigvgan_model)
        self._repeats = self._flow.repeats
        self._unit = lcm(self._flow.block, self._repeats) // self._repeats
        self._numbers = {voice: number for number, voice in enumerate(voices)}
        self.codes = dit.text_embed.codec_embed.num_embeddings
        self.token_s = self._repeats * self._bigvgan.hop / SAMPLE_RATE
        self.chunks = choose_chunks(
            options,
            first=self._unit,
            largest=_LARGEST * self._unit,
            context=self._flow.look_back * self._unit,
            ahead=_AHEAD * self._unit,
            ahead_least=self._flow.look_ahead * self._unit,
            unit=self._unit,
        )
        self.largest = self.chunks.largest
        self.card = SpeechCard(family="Qwen2.5-Omni", voices=voices, default_voice=voices[0], sample_rate=SAMPLE_RATE)

    def begin(self, voice: str, seed: int, streamed: bool) -> Utterance:
        return Utterance(self.chunks, streamed, self._numbers[voice], seed, self._flow.mels)

    def decode(self, batch: Sequence[Utterance], step: Step) -> list[Samples]:
        """A long utterance that is no stream gets on by one step of the solver: its piece has no sound but at last."""
        sounds = {utterance: self._get_on(utterance, step) for utterance in batch if self._takes_turns(utterance)}
        now = [utterance for utterance in batch if utterance not in sounds]
        if now:
            sounds |= dict(zip(now, self._decode_now(now, step), strict=True))
        for utterance in batch:
            if len(sounds[utterance]):
                utterance.made = utterance.end
        return [sounds[utterance] for utterance in batch]

    def _takes_turns(self, utterance: Utterance) -> bool:
        return utterance.size > self.largest + utterance.chunks.ahead

    def _decode_now(self, batch: Sequence[Utterance], step: Step) -> list[Samples]:
        windows = [self._window(utterance) for utterance in batch]
        known = [utterance.path for utterance in batch]
        solution = self._flow.begin(windows, known, keep=not all(utterance.last for utterance in batch))
        while solution.left:
            solution.advance(step)
        made = [self._spectrum(*pair) for pair in zip(batch, solution.spectra(), strict=True)]
        sounds = self._bigvgan.sounds(made, step)
        for utterance, spectrum, path in zip(batch, made, solution.paths(), strict=True):
            if not utterance.last:
                self._remember(utterance, spectrum, path)
        return sounds

    def _get_on(self, utterance: Utterance, step: Step) -> Samples:
        if utterance.solution is None:
            utterance.solution = self._flow.begin([self._window(utterance)], [None], keep=False)
        if utterance.solution.left:
            utterance.solution.advance(step)
            return np.zeros(0, np.float32)
        (sound,) = self._bigvgan.sounds([Spectrum(utterance.solution.spectra()[0], 0, 0)], step)
        return sound

    def _held(self, utterance: Utterance) -> int:
        """Frames of the spectrum that are known and begin the window."""
        return 0 if utterance.path is None else utterance.path.shape[1] * self._flow.block

    def _window(self, utterance: Utterance) -> Window:
        held, made = self._held(utterance), utterance.made
        end = min(utterance.end + utterance.chunks.ahead, len(utterance.codes))
        noise = utterance.noise(made * self._repeats, end * self._repeats)
        codes = torch.tensor(utterance.codes[made - held // self._repeats : end])
        noise = torch.cat((noise.new_zeros(held, self._flow.mels), noise))
        return Window(codes.to(self._flow.device), noise.to(self._flow.device), utterance.voice)

    def _spectrum(self, utterance: Utterance, window: torch.Tensor) -> Spectrum:
        """With as much on either side as its sound depends on, or as there is."""
        fresh = window[self._held(utterance) :]
        size = utterance.size * self._repeats
        fresh = fresh[: size + self._bigvgan.reach]
        tail = utterance.tail.to(fresh.device)
        return Spectrum(torch.cat((tail, fresh)), len(tail), len(fresh) - size)

    def _remember(self, utterance: Utterance, spectrum: Spectrum, path: torch.Tensor) -> None:
        """What the next window begins with."""
        end = len(spectrum.frames) - spectrum.after
        blocks = (self._held(utterance) + end - spectrum.before) // self._flow.block
        kept = utterance.chunks.context * self._repeats // self._flow.block
        utterance.path = path[:, max(0, blocks - kept) : blocks].clone()
        utterance.tail = spectrum.frames[:end][-self._bigvgan.reach :].clone()


def load(directory: Path, options: Code2WavOptions) -> Qwen25Vocoder:
    """
    Raises:
        ValueError: the checkpoint lacks something, or an option cannot be had with it.
        OSError: a file of it is missing or broken.
    """
    config = Qwen2_5OmniConfig.from_pretrained(directory, local_files_only=True).token2wav_config
    speakers = qwen2_5_speakers(directory)
    model = load_part(
        Qwen2_5OmniToken2WavModel, config, directory, "token2wav.", options, compute_device(options.device)
    )
    return Qwen25Vocoder(model, speakers, options)
