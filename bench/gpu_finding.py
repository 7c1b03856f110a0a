"""What the sections of bench.gpu_check find, and whether there is a GPU."""

from __future__ import annotations

from typing import Literal

import msgspec

NO_GPU = "no accelerator here"


class Finding(msgspec.Struct, frozen=True):
    """One row of the page."""

    what: str
    result: str
    state: Literal["ok", "failed", "not run"] = "ok"


def has_gpu() -> bool:
    """Whether torch has an accelerator to compute on."""
    import torch

    return torch.accelerator.is_available()
