"""What a thinker hands to its talker at a time, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from app.cluster.messages import Failed
from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.omni.torchtensors import to_torch


class Handover(NamedTuple):
    """Of consecutive positions: their token ids int32 [n], and rows [n, width] in the thinker's dtype.

    `positions`, in the first one only, are the M-RoPE positions of the whole prompt, int64 [3, length].
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor | None


def read_handover(tensors: Mapping[str, Tensor], width: int, *, first: bool) -> Handover:
    """The tensors "token_ids", "rows" and, in the `first` one, "mrope_positions"; their data is copied.

    Raises:
        EngineError: 500; two stages that are not of one model.
    """
    try:
        ids, rows = to_torch(tensors["token_ids"]), to_torch(tensors["rows"])
        positions = to_torch(tensors["mrope_positions"]).long() if first else None
    except (KeyError, ValueError) as error:
        raise _unreadable(repr(error)) from None
    if ids.ndim != 1 or rows.shape != (len(ids), width):
        raise _unreadable(f"rows {tuple(rows.shape)} for ids {tuple(ids.shape)}, of the width {width}")
    if positions is not None and (positions.ndim != 2 or len(positions) != 3):
        raise _unreadable(f"positions {tuple(positions.shape)} in the place of [3, length of the prompt]")
    return Handover(ids, rows, positions)


def _unreadable(problem: str) -> EngineError:
    return EngineError(Failed(500, f"the talker cannot read what the thinker made: {problem}"))
