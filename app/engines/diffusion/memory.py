"""Whether the weights fit, said before they are read: bytes by component from the headers of their files."""

from __future__ import annotations

from pathlib import Path

import torch

from app.settings.weights import read_components

_MARGIN = 1.25
"""Headers say how much the weights need, not what the system can free: only a clear excess is an error."""
_GIB = 1 << 30


def memory_need(model: Path, dtype: str = "auto", variant: str = "") -> dict[str, int]:
    """Bytes of weights by component, as held in `dtype`; empty where no file says so (pickled weights).

    Raises:
        ValueError: a file is broken; names it.
    """
    return {name: weights.size for name, weights in read_components(model, dtype, variant).items()}


def describe(need: dict[str, int]) -> str:
    """Such as "33.7 GiB (transformer 22.2, text_encoder_2 8.9, vae 0.2)"."""
    parts = sorted(need.items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in parts)
    return f"{sum(need.values()) / _GIB:.1f} GiB ({listed})"


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device; for the CPU, in host memory or in this container's share of it."""
    if device.type == "cpu":
        return min(_meminfo("MemAvailable"), _cgroup_free())
    free, _ = torch.accelerator.get_memory_info(device)
    return free


def check_fits(need: dict[str, int], device: torch.device, free: int, offloaded: bool) -> str:
    """A warning, or "" where it fits. Offloaded, one component at a time has to fit on the device.

    Raises:
        ValueError: it cannot fit by far; says what would help.
    """
    wanted = max(need.values(), default=0) if offloaded else sum(need.values())
    if wanted <= free:
        return ""
    place = "this machine" if device.type == "cpu" else str(device)
    what = "the largest part of the weights needs" if offloaded else "the weights need"
    sentence = f"{what} {wanted / _GIB:.1f} GiB, and {place} has {free / _GIB:.1f} GiB free"
    if wanted <= free * _MARGIN:
        return sentence
    raise ValueError(f"{sentence}: {describe(need)}. {_advice(device, offloaded)}")


def _advice(device: torch.device, offloaded: bool) -> str:
    if device.type == "cpu":
        return "--quantization int8 halves the memory of the denoiser; a smaller --dtype or model helps too"
    if offloaded:
        return "--enable-layerwise-offload moves single layers; --quantization fp8 halves the weights of the denoiser"
    return "--enable-cpu-offload keeps only the part at work on the device; --quantization fp8 halves the denoiser"


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/meminfo has no {key}")


def _cgroup_free() -> int:
    """What this container may still take; without a limit, more than any machine has. Page cache counts as free."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        statistics = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return 1 << 62
    return limit - used + int(statistics.get("file", 0))
