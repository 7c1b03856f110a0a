"""Several calls of one model made into one: their arguments put together row by row, its output taken apart again.

What the arguments mean is told by their shapes, so that no model needs code of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from diffusers.utils import BaseOutput

_POSITIONS = "_ids"
"""End of the names of tensors that say where tokens are. Some models read those of the first row only."""
_BY_ROW = frozenset({"img_shapes", "txt_seq_lens"})
"""Lists of plain values with an entry for each row, which models read in the same way."""
_TEXT, _TEXT_MASK = "encoder_hidden_states", "encoder_hidden_states_mask"
"""A model that takes the mask takes texts of different lengths in one batch."""

Digests = dict[int, tuple[torch.Tensor, bytes]]


class Forward:
    """One call of a model: `rows` of a batch. Calls with equal `key` can be fused; what they differ in is per row."""

    __slots__ = ("args", "key", "kwargs", "rows")

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], digests: Digests) -> None:
        """`digests` remembers, for the caller, the content of tensors that it passes again and again."""
        self.args = args
        self.kwargs = kwargs
        self.rows = _rows((*args, *kwargs.values()))
        named = {**{str(position): value for position, value in enumerate(args)}, **kwargs}
        self.key: Hashable = (id(model), _describe(named, self.rows, digests)) if self.rows else self


def run(model: torch.nn.Module, forwards: Sequence[Forward]) -> list[Any]:
    """The output of each call. A single one is passed as it is; several become one call of the model."""
    if len(forwards) == 1:
        (only,) = forwards
        return [model(*only.args, **only.kwargs)]
    rows = [forward.rows for forward in forwards]
    arguments = zip(*(forward.args for forward in forwards), strict=True)
    args = [_merge(str(position), values, rows) for position, values in enumerate(arguments)]
    kwargs = _merge_named([forward.kwargs for forward in forwards], rows)
    return _split(model(*args, **kwargs), rows)


# ---------------------------------------------------------------------------------------------------- what can be fused


def _rows(values: Sequence[Any]) -> int:
    """The batch size, told by the latents: the first tensor of three dimensions or more, or a list of tensors."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() >= 3:
            return int(value.shape[0])
        if _is_tensors(value):
            return len(value)
    return 0


def _describe(named: Mapping[str, Any], rows: int, digests: Digests) -> Hashable:
    padded = _TEXT in named and _TEXT_MASK in named
    return tuple((name, _kind(name, named[name], rows, digests, padded)) for name in sorted(named))


def _kind(name: str, value: Any, rows: int, digests: Digests, padded: bool = False) -> Hashable:
    match value:
        case torch.Tensor():
            if padded and name in (_TEXT, _TEXT_MASK):
                return value.shape[2:], value.dtype if name == _TEXT else None
            if value.dim() == 0:
                return "scalar", value.dtype
            if value.shape[0] == rows and not name.endswith(_POSITIONS):
                return "rows", value.shape[1:], value.dtype
            return "equal", value.shape, _digest(value, digests)
        case None if padded and name == _TEXT_MASK:
            return (), None
        case dict():
            return _describe({str(key): part for key, part in value.items()}, rows, digests)
        case list() | tuple() if name in _BY_ROW and len(value) == rows and all(part == value[0] for part in value):
            return "by row", repr(value[0])
        case list() | tuple() if _is_tensors(value):
            if len(value) == rows:
                return "list", frozenset(part.shape if part.dim() > 2 else part.shape[1:] for part in value)
            return "equal", tuple(_digest(part, digests) for part in value)
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return repr(value)
    return id(value)


def _is_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(part, torch.Tensor) for part in value)


def _digest(tensor: torch.Tensor, digests: Digests) -> bytes:
    known = digests.get(id(tensor))
    if known is None or known[0] is not tensor:
        content = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        known = digests[id(tensor)] = tensor, hashlib.blake2b(content.tobytes(), digest_size=16).digest()
    return known[1]


# ---------------------------------------------------------------------------------------------------- fusing


def _merge_named(named: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> dict[str, Any]:
    values = {name: [part[name] for part in named] for name in named[0]}
    if _TEXT in values and _TEXT_MASK in values:
        values[_TEXT], values[_TEXT_MASK] = _padded(values[_TEXT], values[_TEXT_MASK])
    return {name: _merge(name, parts, rows) for name, parts in values.items()}


def _merge(name: str, values: Sequence[Any], rows: Sequence[int]) -> Any:
    first = values[0]
    match first:
        case torch.Tensor():
            if first.dim() == 0:  # a time step of its own for every row
                return torch.cat([value.reshape(1).expand(count) for value, count in zip(values, rows, strict=True)])
            return torch.cat(list(values)) if first.shape[0] == rows[0] else first
        case dict():
            return {key: _merge(str(key), [value[key] for value in values], rows) for key in first}
        case list() | tuple() if len(first) == rows[0] and (name in _BY_ROW or _is_tensors(first)):
            return [part for value in values for part in value]
    return first


def _padded(
    texts: Sequence[torch.Tensor], masks: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Texts of one length; the masks say which part of it is text. Without need they stay as they are."""
    longest = max(text.shape[1] for text in texts)
    if all(mask is None and text.shape[1] == longest for text, mask in zip(texts, masks, strict=True)):
        return list(texts), list(masks)
    longer: list[torch.Tensor] = []
    whole: list[torch.Tensor | None] = []
    for text, mask in zip(texts, masks, strict=True):
        there = text.new_ones(text.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        missing = longest - text.shape[1]
        longer.append(torch.nn.functional.pad(text, (0, 0, 0, missing)))
        whole.append(torch.nn.functional.pad(there, (0, missing)))
    return longer, whole


# ---------------------------------------------------------------------------------------------------- taking apart


def _split(output: Any, rows: Sequence[int]) -> list[Any]:
    """The parts of an output, each of the output's own type.

    Raises:
        TypeError: it is nothing that has rows.
    """
    match output:
        case torch.Tensor() if output.shape[0] == sum(rows):
            return list(output.split(list(rows)))
        case BaseOutput():
            parts = {name: _split(value, rows) for name, value in output.items()}
            return [type(output)(**{name: part[i] for name, part in parts.items()}) for i in range(len(rows))]
        case list() if len(output) == sum(rows):
            starts = [sum(rows[:i]) for i in range(len(rows))]
            return [output[start : start + count] for start, count in zip(starts, rows, strict=True)]
        case tuple():
            return [tuple(parts) for parts in zip(*(_split(value, rows) for value in output), strict=True)]
        case None:
            return [None] * len(rows)
    raise TypeError(f"the output of a fused call, {type(output).__name__}, has no rows")
