"""Mel spectra to sound, by the BigVGAN of Qwen2.5-Omni's token2wav."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import torch

from app.engines.speech.family import Samples

_LONGEST = 600
"""Frames of a spectrum that are made into sound together: six seconds, which bounds the memory that it takes."""
_MOST = 4 * _LONGEST
"""Frames in a call."""
_FILTERS = 6
"""How far the filters around an activation look to either side."""


class Spectrum(NamedTuple):
    """Of `frames` (n, mels), all but the first `before` and the last `after` become sound."""

    frames: torch.Tensor
    before: int
    after: int


class BigVgan:
    """The model of transformers, called for several spectra at once where they are of one length.

    `reach`: frames on either side that a frame's sound depends on. `hop`: samples of a frame.
    """

    def __init__(self, model: Any) -> None:
        self.reach = _reach(model.config)
        self.hop = prod(model.config.upsample_rates)
        self._model = model.to(model.dtype)  # also its filters, which no checkpoint holds
        self._step: Callable[[], None] = _nothing
        for module in (*model.ups, *model.resblocks):
            for part in module if isinstance(module, torch.nn.ModuleList) else [module]:
                part.register_forward_pre_hook(lambda *_: self._step())

    def sounds(self, spectra: Sequence[Spectrum], step: Callable[[], None]) -> list[Samples]:
        """The sound of each, hop * (n - before - after) samples; a spectrum's edges are those of the sound."""
        parts = [(index, part) for index, spectrum in enumerate(spectra) for part in self._split(spectrum)]
        alike: dict[int, list[int]] = defaultdict(list)
        for number, (_, part) in enumerate(parts):
            alike[len(part.frames)].append(number)
        made: dict[int, torch.Tensor] = {}
        self._step = step
        try:
            for length, every in alike.items():
                most = max(1, _MOST // length)
                for numbers in (every[start : start + most] for start in range(0, len(every), most)):
                    waves = self._call(torch.stack([parts[number][1].frames for number in numbers]))
                    made |= dict(zip(numbers, waves, strict=True))
        finally:
            self._step = _nothing
        sounds: list[list[torch.Tensor]] = [[] for _ in spectra]
        for number, (index, part) in enumerate(parts):
            end = (len(part.frames) - part.after) * self.hop
            sounds[index].append(made[number][part.before * self.hop : end])
        return [torch.cat(pieces).numpy() for pieces in sounds]

    def _call(self, frames: torch.Tensor) -> torch.Tensor:
        """(b, n, mels) to (b, n * hop) in float32, on the CPU."""
        mels = frames.to(self._model.device, self._model.dtype).transpose(1, 2)
        sound: torch.Tensor = self._model(mels).reshape(len(frames), -1).float()
        return sound

    def _split(self, spectrum: Spectrum) -> list[Spectrum]:
        frames, before, after = spectrum
        end = len(frames) - after
        parts = []
        for start, stop in pairwise([*range(before, end, _LONGEST), end]):
            left, right = max(0, start - self.reach), min(len(frames), stop + self.reach)
            parts.append(Spectrum(frames[left:right], start - left, right - stop))
        return parts


def _reach(config: Any) -> int:
    """In frames, from the last layer to the first: each sees so far to either side, at the rate at which it works."""
    block = max(
        sum((kernel - 1) // 2 * (dilation + 1) + 2 * _FILTERS for dilation in dilations)
        for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
    )
    reach = 3 + _FILTERS  # the last convolution has a kernel of 7, as the first
    rates = list(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True))
    for rate, kernel in reversed(rates):
        reach = ceil((reach + block + kernel / 2) / rate)
    return reach + 3


def _nothing() -> None:
    """Nobody waits."""
