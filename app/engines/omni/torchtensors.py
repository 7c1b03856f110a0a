"""Tensors between stages, as torch's: copied once on the way in, not at all on the way out."""

from __future__ import annotations

import numpy as np
import torch

from app.cluster.tensors import Tensor


def to_torch(tensor: Tensor) -> torch.Tensor:
    """A tensor of our own with the elements of one that came from another stage, whose data may go then.

    Raises:
        ValueError: its data does not fit its dtype and shape.
    """
    data = np.frombuffer(tensor.data, np.uint8)
    if data.size != tensor.size:
        raise ValueError(f"a tensor {tensor.shape} of {tensor.dtype} has {tensor.size} bytes; {data.size} came")
    made = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
    np.copyto(made.view(-1).view(torch.uint8).numpy(), data)
    return made


def from_torch(tensor: torch.Tensor) -> Tensor:
    """What Request.emit_tensors takes, of a tensor on the CPU; a contiguous one is not copied."""
    flat = tensor.detach().contiguous().view(-1)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Tensor(dtype, tuple(tensor.shape), memoryview(flat.view(torch.uint8).numpy()))
