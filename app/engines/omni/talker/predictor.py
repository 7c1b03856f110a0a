"""Qwen3-Omni's code predictor: the residual codes of a frame, one after the other, for many requests at once.

A sequence here is never longer than a frame has codes, so its keys and values are kept in plain tensors and nothing of
a frame is remembered for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample

TOP_K = 50
"""transformers draws residual codes from the 50 best ..."""
TOP_P = 0.8
"""... and of these from the nucleus of 0.8, at temperature 1, whatever the sampling of the first code is."""


class CodePredictor(nn.Module):  # type: ignore[misc]
    """The weights `talker.code_predictor.*` of a checkpoint, projections of one input stacked as vLLM stacks them.

    `config`: transformers' code_predictor_config. Floating point weights are of the default dtype when it is made.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.groups = config.num_code_groups
        self.model = _Decoder(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(self.groups - 1)
        )

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """The sum of the embeddings of residual codes [n, groups - 1] (int64) as [n, hidden]."""
        tables = self.model.codec_embedding
        return torch.stack([table(codes[:, index]) for index, table in enumerate(tables)]).sum(0)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def predict(
        self, hidden: torch.Tensor, first: torch.Tensor, generators: Sequence[torch.Generator | None]
    ) -> torch.Tensor:
        """Residual codes [n, groups - 1], int64.

        `hidden` [n, hidden]: the talker's last hidden rows, normed. `first` [n, hidden]: its embeddings of the codes
        that it sampled from them. `generators`: where each row's randomness comes from, None for the likeliest codes.
        """
        count = hidden.shape[0]
        rotation = self.model.rotation(self.groups, hidden)
        cache = self.model.cache(count, self.groups, hidden)
        choice = _Choice(generators, self.lm_head[0].out_features, hidden.device)
        inputs, start, codes = torch.stack((hidden, first), dim=1), 0, []
        for index in range(self.groups - 1):
            rows = self.model(inputs, start, rotation, cache)
            code = choice.of(self.lm_head[index](rows))
            codes.append(code)
            start += inputs.shape[1]
            inputs = self.model.codec_embedding[index](code)[:, None]
        return torch.stack(codes, dim=1)


class _Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.theta = float(config.rope_parameters["rope_theta"])
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.hidden_size) for _ in range(config.num_code_groups - 1)
        )
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def rotation(self, length: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [length, head_dim]: computed in float32, used in the model's dtype."""
        powers = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=like.device) / self.head_dim
        angles = torch.outer(torch.arange(length, dtype=torch.float32, device=like.device), self.theta**-powers)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def cache(self, count: int, length: int, like: torch.Tensor) -> torch.Tensor:
        """Room for keys and values: [layers, 2, count, kv_heads, length, head_dim]."""
        return like.new_empty(len(self.layers), 2, count, self.kv_heads, length, self.head_dim)

    def forward(
        self, rows: torch.Tensor, start: int, rotation: tuple[torch.Tensor, torch.Tensor], cache: torch.Tensor
    ) -> torch.Tensor:
        """The normed last row [n, hidden] of `rows` [n, k, hidden], which are at the positions start .. start + k."""
        end = start + rows.shape[1]
        cosines, sines = (part[start:end] for part in rotation)
        for layer, kept in zip(self.layers, cache, strict=True):
            rows = layer(rows, start, cosines, sines, kept)
        return self.norm(rows[:, -1])


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = _FeedForward(config)

    def forward(
        self, rows: torch.Tensor, start: int, cosines: torch.Tensor, sines: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), start, cosines, sines, kept)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        sizes = {shard: count * self.head_dim for shard, count in zip("qkv", self._counts, strict=True)}
        self.qkv_proj = _stacked(config.hidden_size, sizes, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=config.attention_bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    @property
    def _counts(self) -> list[int]:
        return [self.heads, self.kv_heads, self.kv_heads]

    def forward(
        self, rows: torch.Tensor, start: int, cosines: torch.Tensor, sines: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        count, length, _ = rows.shape
        heads = self.qkv_proj(rows).view(count, length, -1, self.head_dim).transpose(1, 2)
        queries, keys, values = heads.split(self._counts, dim=1)
        end = start + length
        kept[0, :, :, start:end] = _rotated(self.k_norm(keys), cosines, sines)
        kept[1, :, :, start:end] = values
        # Only the first call has more than one row, and nothing before them: causal within itself.
        attended = functional.scaled_dot_product_attention(
            _rotated(self.q_norm(queries), cosines, sines),
            kept[0, :, :, :end],
            kept[1, :, :, :end],
            is_causal=length > 1,
            enable_gqa=True,
        )
        return self.o_proj(attended.transpose(1, 2).reshape(count, length, -1))


class _FeedForward(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = _stacked(config.hidden_size, {0: size, 1: size}, bias=False)
        self.down_proj = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(rows).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


def _stacked(inputs: int, sizes: dict[Any, int], *, bias: bool) -> nn.Linear:
    """A Linear whose outputs several matrices of a checkpoint make; vLLM's loader marks each by its key in `sizes`."""
    linear = nn.Linear(inputs, sum(sizes.values()), bias=bias)

    def load(parameter: nn.Parameter, weight: Any) -> None:
        parts = dict(zip(sizes, parameter.data.split(list(sizes.values())), strict=True))
        parts[weight.shard_id].copy_(weight)

    for parameter in linear.parameters():
        parameter.weight_loader = load
    return linear


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    low, high = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-high, low), dim=-1) * sines


class _Choice:
    """How the codes of rows are chosen: drawn, or the likeliest where there is no generator."""

    def __init__(self, generators: Sequence[torch.Generator | None], size: int, device: torch.device) -> None:
        count = len(generators)
        self._drawn = {row: generator for row, generator in enumerate(generators) if generator is not None}
        self._top_k = min(TOP_K, size)
        self._top_p = torch.full((count,), TOP_P, device=device)
        self._greedy = torch.tensor([generator is None for generator in generators], device=device)

    def of(self, logits: torch.Tensor) -> torch.Tensor:
        """Codes [n] of logits [n, codes]."""
        best = logits.argmax(dim=-1)
        if not self._drawn:
            return best
        # vLLM changes it in place.
        top_k = torch.full(best.shape, self._top_k, device=logits.device)
        probabilities = apply_top_k_top_p(logits.float(), top_k, self._top_p).softmax(dim=-1)
        return torch.where(self._greedy, best, random_sample(probabilities, self._drawn))
