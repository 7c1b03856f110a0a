"""In which number type weights are held."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from safetensors import safe_open

from app.engines.device import DTYPES
from app.engines.diffusion.checkpoint import Checkpoint
from app.engines.diffusion.load_arguments import FLAG

Dtypes: TypeAlias = "torch.dtype | dict[str, torch.dtype]"
"""One for all components, or by component, with "default" for the others."""


def choose_dtype(named: str, arguments: dict[str, Any], checkpoint: Checkpoint, device: torch.device) -> Dtypes:
    """That of --dtype (`named`) or, taken out of it, of --diffusers-load-kwargs (`arguments`).

    For auto: float32 on a CPU; elsewhere float16 where the denoiser is stored so, else bfloat16.

    Raises:
        ValueError: several are named, and differ.
    """
    given = [arguments.pop(name) for name in ("dtype", "torch_dtype") if name in arguments]
    if named != "auto":
        given.append(DTYPES[named])
    if any(dtype != given[0] for dtype in given):
        raise ValueError(f"--dtype and {FLAG} name different dtypes; name one")
    if given:
        chosen: Dtypes = given[0]
        return chosen
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if _stored(checkpoint) == "F16" else torch.bfloat16


def default_of(dtype: Dtypes) -> torch.dtype:
    """What a component has that is not named; diffusers' own default is float32."""
    return dtype.get("default", torch.float32) if isinstance(dtype, dict) else dtype


def name_of(dtype: Dtypes) -> str:
    """Such as "bfloat16"."""
    if isinstance(dtype, dict):
        return ", ".join(f"{name_of(part)} ({name})" for name, part in dtype.items())
    return str(dtype).removeprefix("torch.")


def _stored(checkpoint: Checkpoint) -> str:
    """The type in the first weight file of the denoiser, as safetensors writes it; "" where there is no such file."""
    for name in ("transformer", "unet"):
        for file in sorted((checkpoint.directory / name).glob("*.safetensors")):
            with safe_open(file, "pt") as content:
                for tensor in content.keys():  # noqa: SIM118 - no mapping
                    return str(content.get_slice(tensor).get_dtype())
    return ""
