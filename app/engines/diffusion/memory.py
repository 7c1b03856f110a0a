"""Whether the weights fit, said before they are read: bytes by component from the headers of their files."""

from __future__ import annotations

from pathlib import Path

import torch

from app.settings.weights import read_components

_MARGIN = 1.25
"""Headers say how much the weights need, not what the system can free: only a clear excess is an error."""
_GIB = 1 << 30

_ADVICE = {
    True: "--quantization int8 halves the denoiser; a 16-bit --dtype or a smaller model helps too",
    False: "--enable-cpu-offload keeps only the part at work on the device; --quantization fp8 halves the denoiser",
}
"""By whether it is host memory that is short."""
_ADVICE_OFFLOADED = "--enable-layerwise-offload moves single layers; --quantization fp8 halves the denoiser"


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
    return int(torch.accelerator.get_memory_info(device)[0])


def judge(need: dict[str, int], device: torch.device, offloading: str) -> list[str]:
    """Warnings of weights that hardly fit. `offloading`: "module", "layer" or "" (app.engines.diffusion.offload).

    Raises:
        ValueError: they cannot fit by far; says what would help.
    """
    host = torch.device("cpu")
    if not offloading or device == host:
        return _compare(sum(need.values()), "the weights need", need, device, _ADVICE[device.type == "cpu"])
    found = _compare(sum(need.values()), "the weights need", need, host, _ADVICE[True])
    if offloading == "module":
        found += _compare(max(need.values()), "the largest part of the weights needs", need, device, _ADVICE_OFFLOADED)
    return found


def _compare(wanted: int, what: str, need: dict[str, int], device: torch.device, advice: str) -> list[str]:
    free = free_memory(device)
    if wanted <= free:
        return []
    place = "this machine" if device.type == "cpu" else str(device)
    sentence = f"{what} {wanted / _GIB:.1f} GiB, and {place} has {free / _GIB:.1f} GiB free"
    if wanted <= free * _MARGIN:
        return [sentence]
    raise ValueError(f"{sentence}: {describe(need)}. {advice}")


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
