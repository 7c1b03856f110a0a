"""Where a stage computes that runs torch itself."""

from __future__ import annotations

import torch


def compute_device(named: str) -> torch.device:
    """What the stage was told, else ("") the accelerator of this machine, else its CPU."""
    if named:
        return torch.device(named)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
