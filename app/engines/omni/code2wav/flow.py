"""The flow matching of Qwen2.5-Omni's token2wav: codes to mel spectra, over windows of any length in one batch.

Its attention sees a block of frames and, in a few layers, the block before or after it. So a batch needs no padding:
the blocks of all windows lie one after the other, and each knows its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional

_STEPS = 10
_GUIDANCE = 0.5
STAGES = 4
"""Evaluations in a step of the solver."""


class Window(NamedTuple):
    """Consecutive codes (n,) that begin at a block's border, in the voice number `voice`; noise (frames, mels)."""

    codes: torch.Tensor
    noise: torch.Tensor
    voice: int


class Blocks(NamedTuple):
    """Windows as blocks (m, block), m counting all of them twice: as they are, and without any condition.

    `still`: what the model is told beside the noise, projected, (m, block, width). `valid`: frames that are some, (m,
    block). `before` and `after`: indices of the neighbours (m,), a block's own where it has none; `has_before` and
    `has_after`, (m,). `angles`: cosines and sines of positions in the window, each (m, block, 1, head_dim / 2).
    """

    still: torch.Tensor
    valid: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    has_before: torch.Tensor
    has_after: torch.Tensor
    angles: tuple[torch.Tensor, torch.Tensor]


Masks: TypeAlias = dict[tuple[bool, bool], torch.Tensor]
"""By whether a layer looks back and ahead: which of the keys are there, (m, 1, 1, keys)."""


class Flow:
    """The diffusion transformer of transformers' token2wav, its weights used as they are.

    `look_back` and `look_ahead`: blocks on either side that one evaluation of a block depends on.
    """

    def __init__(self, dit: Any, voices: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """`voices`: for each its embedding (1, n) and its reference spectrum (1, frames, mels)."""
        config = dit.config
        self.block = config.block_size
        self.repeats = config.repeats
        self.mels = config.mel_dim
        self.look_back = sum(layer.look_backward_block for layer in dit.transformer_blocks)
        self.look_ahead = sum(layer.look_ahead_block for layer in dit.transformer_blocks)
        self.device, self.dtype = dit.device, dit.dtype
        self._dit = dit
        grid = torch.linspace(0, 1, _STEPS)
        self.times: list[float] = (
            1 - torch.cos(torch.pi / 2 * grid)
        ).tolist()  # slower at the beginning, where most is decided
        self.evaluations = STAGES * (_STEPS - 1)
        projection = dit.input_embed.proj
        self._from_noise = projection.weight[:, : self.mels]
        with torch.inference_mode():
            self._voices = [self._voice(*voice) for voice in voices]
        half = torch.arange(0, config.head_dim, 2, device=self.device, dtype=torch.float32) / config.head_dim
        self._frequencies = config.rope_parameters["rope_theta"] ** -half

    def _voice(self, embedding: torch.Tensor, spectrum: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(2, n) each: what stands beside a code for this voice and for none, before it and after it."""
        embedding, spectrum = (part.to(self.device, self.dtype) for part in (embedding, spectrum))
        heard = self._dit.input_embed.spk_encoder(torch.cat((spectrum, torch.zeros_like(spectrum))))
        return heard, torch.cat((embedding, torch.zeros_like(embedding)))

    def begin(self, windows: Sequence[Window], fixed: Sequence[torch.Tensor | None], *, keep: bool) -> Solution:
        """The windows as noise.

        `fixed`: what as many blocks at a window's beginning were at each evaluation, from a window in which they had
        more before them. `keep`: remember the same of these windows.
        """
        counts = [-(-len(window.noise) // self.block) for window in windows]
        rest = [count * self.block - len(window.noise) for count, window in zip(counts, windows, strict=True)]
        noise = torch.cat(
            [functional.pad(window.noise, (0, 0, 0, more)) for window, more in zip(windows, rest, strict=True)]
        ).view(-1, self.block, self.mels)
        starts = [sum(counts[:index]) for index in range(len(counts))]
        held = [(start, path) for start, path in zip(starts, fixed, strict=True) if path is not None]
        sizes = [len(window.noise) for window in windows]
        return Solution(self, self._lay_out(windows, counts), noise, sizes, held, keep=keep)

    # ------------------------------------------------------------------------------------------------ windows to blocks

    def _lay_out(self, windows: Sequence[Window], counts: Sequence[int]) -> Blocks:
        index = torch.arange(sum(counts), device=self.device)
        sizes = torch.tensor(counts, device=self.device)
        start = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        place = index - start
        has_before, has_after = place > 0, place < torch.repeat_interleave(sizes, sizes) - 1
        frames = torch.repeat_interleave(torch.tensor([len(x.noise) for x in windows], device=self.device), sizes)
        position = place[:, None] * self.block + torch.arange(self.block, device=self.device)
        angles = (position.float()[..., None] * self._frequencies).repeat(2, 1, 1)[:, :, None]
        before, after = index - has_before.long(), index + has_after.long()
        return Blocks(
            still=torch.cat([self._still(windows, counts, side) for side in (0, 1)]),
            valid=(position < frames[:, None]).repeat(2, 1),
            before=torch.cat((before, before + len(index))),
            after=torch.cat((after, after + len(index))),
            has_before=has_before.repeat(2),
            has_after=has_after.repeat(2),
            angles=(angles.cos().to(self.dtype), angles.sin().to(self.dtype)),
        )

    def _still(self, windows: Sequence[Window], counts: Sequence[int], side: int) -> torch.Tensor:
        """With the condition (side 0) or without (1)."""
        projection = self._dit.input_embed.proj
        parts = []
        for window, count in zip(windows, counts, strict=True):
            codes = window.codes if side == 0 else torch.zeros_like(window.codes)
            said = self._dit.text_embed(codes[None])[0]
            said = functional.pad(said, (0, 0, 0, count * self.block - len(said)))
            heard, embedding = (part[side].expand(len(said), -1) for part in self._voices[window.voice])
            told = torch.cat((heard, said, embedding), dim=-1)
            parts.append(functional.linear(told, projection.weight[:, self.mels :], projection.bias))
        return torch.cat(parts).view(-1, self.block, parts[0].shape[-1])

    # ------------------------------------------------------------------------------------------------ the model

    def velocity(
        self, state: torch.Tensor, time: float, blocks: Blocks, masks: Masks, step: Callable[[], None]
    ) -> torch.Tensor:
        """Where the blocks (m / 2, block, mels) are going at a time of 0..1; `step` is called before each layer."""
        dit = self._dit
        moment = dit.time_embed(torch.tensor([time], device=self.device, dtype=self.dtype))
        noise = functional.linear(state.to(self.dtype), self._from_noise)
        hidden = noise.repeat(2, 1, 1) + blocks.still
        for layer in dit.transformer_blocks:
            step()
            hidden = self._layer(layer, hidden, moment, blocks, masks)
        told, untold = dit.proj_out(dit.norm_out(hidden, moment)).float().chunk(2)
        return told + (told - untold) * _GUIDANCE

    # ------------------------------------------------------------------------------------------------ a layer

    def _layer(
        self, layer: Any, hidden: torch.Tensor, moment: torch.Tensor, blocks: Blocks, masks: Masks
    ) -> torch.Tensor:
        normed, gate, shift, scale, gate_after = layer.attn_norm(hidden, emb=moment)
        look = (bool(layer.look_backward_block), bool(layer.look_ahead_block))
        hidden = hidden + gate[:, None] * self._attention(layer.attn, normed, look, blocks, masks[look])
        normed = layer.ff_norm(hidden) * (1 + scale[:, None]) + shift[:, None]
        return hidden + gate_after[:, None] * layer.ff(normed)

    def _attention(
        self, attention: Any, hidden: torch.Tensor, look: tuple[bool, bool], blocks: Blocks, mask: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = (
            project(hidden).unflatten(-1, (attention.heads, -1))
            for project in (attention.to_q, attention.to_k, attention.to_v)
        )
        for part in (query, key):
            part[:, :, :1] = _turned(part[:, :, :1], blocks.angles)  # of its heads only the first knows of positions
        key, value = (_around(part, look, blocks).transpose(1, 2) for part in (key, value))
        found = functional.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=mask)
        output: torch.Tensor = attention.to_out[0](found.transpose(1, 2).flatten(2))
        return output

    def masks(self, blocks: Blocks) -> Masks:
        """For all layers."""
        masks = {}
        for look in {(bool(x.look_backward_block), bool(x.look_ahead_block)) for x in self._dit.transformer_blocks}:
            back, ahead = look
            parts = [blocks.valid[blocks.before] & blocks.has_before[:, None]] if back else []
            parts.append(blocks.valid)
            parts += [blocks.valid[blocks.after] & blocks.has_after[:, None]] if ahead else []
            masks[look] = torch.cat(parts, dim=1)[:, None, None]
        return masks


class Solution:
    """Windows on their way from noise to spectra, by Runge and Kutta's method of fourth order with the weights 1, 3, 3,
    1. `left`: steps that remain.
    """

    def __init__(
        self,
        flow: Flow,
        blocks: Blocks,
        noise: torch.Tensor,
        sizes: Sequence[int],
        held: Sequence[tuple[int, torch.Tensor]],
        *,
        keep: bool,
    ) -> None:
        """`sizes`: frames of each window; `held`: where blocks begin of which it is known what they are, and that."""
        self.left = len(flow.times) - 1
        self._flow = flow
        self._blocks = blocks
        self._masks = flow.masks(blocks)
        self._state = noise
        self._sizes = sizes
        self._held = held
        self._paths = torch.empty(flow.evaluations if keep else 1, *noise.shape, device=flow.device)

    def advance(self, step: Callable[[], None]) -> None:
        """One step of the solver; left by an exception of `step`, it has not been made."""
        index = len(self._flow.times) - 1 - self.left
        begin, end = self._flow.times[index : index + 2]
        size, state = end - begin, self._state

        def slope(number: int, time: float, state: torch.Tensor) -> torch.Tensor:
            count = STAGES * index + number
            at = self._paths[count % len(self._paths)]
            at.copy_(state)
            for start, path in self._held:
                at[start : start + path.shape[1]] = path[count]
            return self._flow.velocity(at, time, self._blocks, self._masks, step)

        first = slope(0, begin, state)
        second = slope(1, begin + size / 3, state + size * first / 3)
        third = slope(2, begin + size * 2 / 3, state + size * (second - first / 3))
        fourth = slope(3, end, state + size * (first - second + third))
        self._state = state + (first + 3 * (second + third) + fourth) * size / 8
        self.left -= 1

    def spectra(self) -> list[torch.Tensor]:
        """(frames, mels) of each window."""
        parts = self._state.split(self._counts)
        return [part.flatten(0, 1)[:size] for part, size in zip(parts, self._sizes, strict=True)]

    def paths(self) -> list[torch.Tensor]:
        """What each window's blocks were at each evaluation, (evaluations, blocks, block, mels), if that was kept."""
        return list(self._paths.split(self._counts, dim=1))

    @property
    def _counts(self) -> list[int]:
        return [-(-size // self._flow.block) for size in self._sizes]


def _around(part: torch.Tensor, look: tuple[bool, bool], blocks: Blocks) -> torch.Tensor:
    back, ahead = look
    parts = [part[blocks.before]] if back else []
    parts.append(part)
    parts += [part[blocks.after]] if ahead else []
    return torch.cat(parts, dim=1) if len(parts) > 1 else part


def _turned(heads: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """(m, block, 1, head_dim), of which each two neighbouring numbers are turned by their angle."""
    cosine, sine = angles
    even, odd = heads[..., ::2], heads[..., 1::2]
    return torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).flatten(-2)
