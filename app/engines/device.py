"""Where a stage computes that runs torch itself, and what it says when its memory is full."""

from __future__ import annotations

import torch


def compute_device(named: str) -> torch.device:
    """What the stage was told, else ("") the accelerator of this machine, else its CPU."""
    if named:
        return torch.device(named)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def is_out_of_memory(error: Exception) -> bool:
    """Also of the CPU's allocator, which has no class of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release_memory() -> None:
    """Give the device's cached memory back."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
