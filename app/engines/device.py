"""Where a stage computes that runs torch itself, and what it says when its memory is full."""

from __future__ import annotations

import torch

from app.cluster.messages import Failed
from app.engines.base import EngineError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def compute_device(named: str) -> torch.device:
    """What the stage was told, else ("") the accelerator of this machine, else its CPU."""
    if named:
        return torch.device(named)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def torch_dtype(named: str, device: torch.device, *, small: bool = False) -> torch.dtype | str:
    """What the stage was told; for auto float32 on a CPU and for `small` models, which gain nothing by less, and
    elsewhere ("auto") what the weights are stored in.
    """
    if named != "auto":
        return DTYPES[named]
    return torch.float32 if small or device.type == "cpu" else "auto"


def is_out_of_memory(error: Exception) -> bool:
    """Also of the CPU's allocator, which has no class of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release_memory() -> None:
    """Give the device's cached memory back."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def out_of_memory(what: str, advice: str) -> EngineError:
    """What the client is told whose request, or part of one, does not fit."""
    message = f"the device has too little memory for this {what}: {advice}"
    return EngineError(Failed(503, message, "service_unavailable_error", code="out_of_memory"))
