"""How many threads read the weight files of a component, for diffusers and transformers alike.

Components are loaded one after another: both libraries change the process's default dtype and torch's initialisers
while they build a model, so two models built at a time would get each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from diffusers.models import model_loading_utils, modeling_utils
from transformers import core_model_loading

from app.engines.diffusion.options import DiffusionOptions


@contextmanager
def weight_threads(options: DiffusionOptions, arguments: dict[str, Any]) -> Iterator[int]:
    """Within it, weight files are read by that many threads; yields how many.

    One thread under --disable-multithread-weight-load, and where weights are quantized as they are read: threads would
    hold more of them in full precision than the memory may have room for. diffusers has no setting for the number.
    """
    alone = options.disable_multithread_weight_load or arguments.get("quantization_config") is not None
    count = 1 if alone else options.num_weight_load_threads
    parallel = count > 1 and arguments.get("low_cpu_mem_usage", True)
    with ExitStack() as stack:
        stack.enter_context(_set(modeling_utils, "HF_ENABLE_PARALLEL_LOADING", parallel))
        stack.enter_context(_set(model_loading_utils, "DEFAULT_HF_PARALLEL_LOADING_WORKERS", count))
        stack.enter_context(_set(core_model_loading, "GLOBAL_WORKERS", count))
        yield count


@contextmanager
def _set(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
