"""The code2wav model of Qwen3-Omni, piece by piece: each piece is what it would be in the middle of the whole.

Its transformer looks back over a sliding window, whose keys and values are kept; its convolutions look back over a few
frames, whose hidden states are kept. They also look ahead, by less than a frame, so that a piece's sound ends `tail`
samples before its last frame does, and so does the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as stock

from app.engines.speech.family import Samples


class Past(NamedTuple):
    """What is kept of a request between two pieces.

    `keys` and `values` of the last frames, (layers, heads, n, head_dim); `hidden` of the last frames, (m, width), m not
    above n_frames; `frames` and `samples` that have been made so far.
    """

    keys: torch.Tensor
    values: torch.Tensor
    hidden: torch.Tensor
    frames: int
    samples: int


class Causal:
    """`reach`: frames before a piece that its convolutions look at. `hop`: samples of a frame. `tail`: see above."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self._window = config.sliding_window
        self._layers = model.pre_transformer.layers
        self._heads = (config.num_key_value_heads, self._layers[0].self_attn.head_dim)
        self.groups = config.num_quantizers
        self.hop = int(model.total_upsample)
        reach, self.tail = _reach(model)
        self.reach = ceil((reach + self.tail) / self.hop)
        self.device, self.dtype = model.device, model.dtype

    def start(self) -> Past:
        """Before the first piece."""
        heads, size = self._heads
        nothing = torch.zeros(len(self._layers), heads, 0, size, device=self.device, dtype=self.dtype)
        hidden = torch.zeros(0, self._model.config.hidden_size, device=self.device, dtype=self.dtype)
        return Past(nothing, nothing, hidden, 0, 0)

    def sounds(
        self, codes: Sequence[torch.Tensor], pasts: Sequence[Past], context: int, step: Callable[[], None]
    ) -> tuple[list[Samples], list[Past]]:
        """The sound of further codes (n, groups) of each request, and its past then, with `context` hidden states."""
        hidden, keys, values = self._transform(codes, pasts, step)
        seen = [torch.cat((past.hidden, new)) for past, new in zip(pasts, hidden, strict=True)]
        waves = self._sound(seen, step)
        sounds, after = [], []
        for past, new, have, wave, key, value in zip(pasts, hidden, seen, waves, keys, values, strict=True):
            frames = past.frames + len(new)
            begin = past.samples - (frames - len(have)) * self.hop
            end = len(have) * self.hop - self.tail
            sounds.append(wave[begin:end].float().cpu().numpy())
            after.append(Past(key, value, have[-context:], frames, past.samples + end - begin))
        return sounds, after

    # ------------------------------------------------------------------------------------------------ transformer

    def _transform(
        self, codes: Sequence[torch.Tensor], pasts: Sequence[Past], step: Callable[[], None]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Hidden states (n, width), keys and values of each request. New frames are padded at their end, what is kept
        of earlier ones at its beginning, so that they meet.
        """
        model, sizes = self._model, [len(new) for new in codes]
        padded = pad_sequence(list(codes), batch_first=True).to(self.device)
        hidden = model.code_embedding(padded.transpose(1, 2) + model.code_offset).mean(1)
        frames = torch.tensor([past.frames for past in pasts], device=self.device)
        position = frames[:, None] + torch.arange(padded.shape[1], device=self.device)
        kept = _Kept(pasts)
        mask = self._mask(frames, sizes, position, kept.length)
        angles = model.pre_transformer.rotary_emb(hidden, position)
        for layer in self._layers:
            step()
            hidden = layer(hidden, attention_mask=mask, position_embeddings=angles, past_key_values=kept)
        hidden = model.pre_transformer.norm(hidden)
        keys, values = kept.after(sizes, self._window - 1)
        return [row[:size] for row, size in zip(hidden, sizes, strict=True)], keys, values

    def _mask(self, frames: torch.Tensor, sizes: Sequence[int], position: torch.Tensor, kept: int) -> torch.Tensor:
        """Which keys a frame looks at, (b, 1, n, kept + n); a padded frame at least at its own."""
        earlier = frames[:, None] - kept + torch.arange(kept, device=self.device)
        key = torch.cat((earlier, position), dim=1)[:, None]
        back = position[:, :, None] - key
        seen: torch.Tensor = (back >= 0) & (back < self._window) & (key >= 0)
        return seen[:, None]

    # ------------------------------------------------------------------------------------------------ convolutions

    def _sound(self, hidden: Sequence[torch.Tensor], step: Callable[[], None]) -> torch.Tensor:
        """(b, samples), of which a row's are right up to its own end less `tail`."""
        wave = pad_sequence(list(hidden), batch_first=True).transpose(1, 2)
        for block in (*(block for blocks in self._model.upsample for block in blocks), *self._model.decoder):
            step()
            wave = block(wave)
        return wave[:, 0].clamp(-1, 1)


class _Kept:
    """What a layer of the model takes for its cache: earlier keys and values of a batch, and those that come."""

    def __init__(self, pasts: Sequence[Past]) -> None:
        self.length = max(past.keys.shape[2] for past in pasts)
        self._pasts = pasts
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, heads, n, head_dim) each; the same with the earlier ones before them."""
        self._keys.append(torch.cat((self._earlier([past.keys[layer] for past in self._pasts]), keys), dim=2))
        self._values.append(torch.cat((self._earlier([past.values[layer] for past in self._pasts]), values), dim=2))
        return self._keys[-1], self._values[-1]

    def _earlier(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([torch.nn.functional.pad(row, (0, 0, self.length - row.shape[1], 0)) for row in rows])

    def after(self, sizes: Sequence[int], most: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What is kept of each request, of `most` frames at most."""
        return self._latest(self._keys, sizes, most), self._latest(self._values, sizes, most)

    def _latest(self, layers: Sequence[torch.Tensor], sizes: Sequence[int], most: int) -> list[torch.Tensor]:
        stacked = torch.stack(list(layers), dim=1)
        latest = []
        for row, size, past in zip(stacked, sizes, self._pasts, strict=True):
            end = self.length + size
            latest.append(row[:, :, max(self.length - past.keys.shape[2], end - most) : end].clone())
        return latest


def _reach(model: Any) -> tuple[int, int]:
    """How many samples before one have to be right, and how many are missing at the end."""
    modules = [module for part in (model.upsample, model.decoder) for module in part.modules()]
    kinds = (stock.Qwen3OmniMoeCausalConvNet, stock.Qwen3OmniMoeCausalTransConvNet)
    layers = [module for module in modules if isinstance(module, kinds)]
    tail, rate = 0, 1
    for layer in layers:
        if isinstance(layer, stock.Qwen3OmniMoeCausalTransConvNet):
            tail = tail * layer.conv.stride[0] + layer.right_pad
            rate *= layer.conv.stride[0]
    reach = 0
    for layer in reversed(layers):
        if isinstance(layer, stock.Qwen3OmniMoeCausalTransConvNet):
            reach = ceil(reach / layer.conv.stride[0])
        else:
            reach += layer.kernel_size - 1
    return reach * rate, tail
