"""torch.compile for the denoisers: their repeated blocks, or all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from app.engines.diffusion.options import DiffusionOptions


def compile_denoisers(
    models: Mapping[str, torch.nn.Module], options: DiffusionOptions, backend: Any = "inductor"
) -> Iterator[str]:
    """Compile the denoisers `models` in place, if the options ask for it; yields what was done.

    The code itself is made at the first call of each shape. `backend` is torch.compile's.
    """
    granularity = options.diffusion_compile_granularity
    if granularity is None or options.enforce_eager:
        if granularity is not None:
            yield "--enforce-eager: nothing is compiled"
        return
    arguments = {"dynamic": options.diffusion_compile_dynamic, "backend": backend}
    for name, model in models.items():
        if granularity == "regional" and getattr(model, "_repeated_blocks", None):
            # not as one graph at any price: with that, the ninth size would fail and not just run uncompiled
            model.compile_repeated_blocks(fullgraph=False, **arguments)
            yield f"the repeated blocks of {name} are compiled at the first request of each size"
        else:
            model.compile(**arguments)
            why = f": {type(model).__name__} names no repeated blocks" if granularity == "regional" else ""
            yield f"{name} is compiled as a whole at the first request of each size{why}"
