"""torch.compile for the denoisers: their repeated blocks, or all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from app.engines.diffusion.options import DiffusionOptions

_HOST = torch.device("cpu")


def compile_denoisers(
    models: Mapping[str, torch.nn.Module],
    options: DiffusionOptions,
    backend: Any = "inductor",
    device: torch.device = _HOST,
) -> Iterator[str]:
    """Compile the denoisers `models` in place, if the options ask for it; yields what was done.

    The code itself is made at the first call of each shape. `backend` is torch.compile's.
    """
    granularity = options.diffusion_compile_granularity
    if options.enable_cuda_graph_decode and not options.enforce_eager:
        if device.type == "cuda":
            for name, model in models.items():
                yield record_blocks(name, model, options.diffusion_compile_dynamic)
            return
        yield f"--enable-cuda-graph-decode has no effect: CUDA graphs are CUDA's, and this stage computes on {device}"
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


def record_blocks(name: str, model: torch.nn.Module, dynamic: bool | None, **compiler: Any) -> str:
    """Compile the blocks of a denoiser so that each is recorded as a CUDA graph; what was done.

    `compiler` are arguments of torch.compile in place of the mode that records.
    """
    lists = [child for child in model.children() if isinstance(child, torch.nn.ModuleList)]
    blocks = [block for blocks in lists for block in blocks]
    for block in blocks:
        block.compile(dynamic=dynamic, **(compiler or {"mode": "reduce-overhead"}))
    # What the blocks of one pass hand to each other must not be overwritten before the next pass.
    model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
    return f"{len(blocks)} blocks of {name} become CUDA graphs at the first request of each size"
