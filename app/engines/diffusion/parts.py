"""The parts of a pipeline by what they do."""

from __future__ import annotations

from typing import Any

import torch

DENOISERS = ("transformer", "transformer_2", "unet")
"""What pipelines call them."""


def denoisers(pipe: Any) -> dict[str, torch.nn.Module]:
    """The models that run once or more for every step, by component name; Wan 2.2 has two."""
    found = {name: getattr(pipe, name, None) for name in DENOISERS}
    return {name: part for name, part in found.items() if isinstance(part, torch.nn.Module)}


def modules(pipe: Any) -> dict[str, torch.nn.Module]:
    """All components with weights, by name."""
    return {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}
