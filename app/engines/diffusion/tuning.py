"""Everything that is done once to a loaded pipeline because an option says so."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from app.engines.device import compute_device
from app.engines.diffusion.attention import set_attention
from app.engines.diffusion.compile import compile_denoisers
from app.engines.diffusion.determinism import make_deterministic
from app.engines.diffusion.offload import offload
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.quantize import quantize_loaded

_SHIFTS = ("flow_shift", "shift")
"""What schedulers call the shift of the noise schedule."""


def tune(pipe: Any, options: DiffusionOptions, splitting: Iterable[str] = ()) -> list[str]:
    """Apply the options to a loaded pipeline; one sentence for each thing done.

    `splitting` splits it over ranks while it is iterated: when the attention is known, and before anything is compiled.

    Where something is offloaded (offload_config()), the pipeline is still in host memory when this is called, and what
    belongs on the device is there afterwards.

    Raises:
        ValueError: an option cannot work with this pipeline or on this machine; the message says which and why.
    """
    device = compute_device(options.device)
    steps = (
        _schedule(pipe, options),
        _guardrails(pipe, options),
        _autoencoder(pipe, options),
        quantize_loaded(pipe, options),
        set_attention(denoisers(pipe), options, device),
        make_deterministic(denoisers(pipe), options),
        splitting,
        offload(pipe, options, device),
        compile_denoisers(denoisers(pipe), options, device=device),
    )
    return [done for step in steps for done in step]


def shift_argument(scheduler: Any) -> str:
    """What the scheduler calls the shift of its noise schedule; "" if it has none that can be chosen.

    A schedule that follows the size of the picture (use_dynamic_shifting) takes no fixed shift.
    """
    if getattr(scheduler.config, "use_dynamic_shifting", False):
        return ""
    known = inspect.signature(type(scheduler).__init__).parameters
    return next((name for name in _SHIFTS if name in known), "")


def _schedule(pipe: Any, options: DiffusionOptions) -> Iterator[str]:
    if options.flow_shift is not None:
        scheduler = pipe.scheduler
        name = shift_argument(scheduler)
        if not name:
            dynamic = getattr(scheduler.config, "use_dynamic_shifting", False)
            why = "follows the size of the picture" if dynamic else "has no shift"
            raise ValueError(f"--flow-shift: the noise schedule of {type(scheduler).__name__} {why}; remove it")
        pipe.scheduler = type(scheduler).from_config(scheduler.config, **{name: options.flow_shift})
        yield f"the noise schedule has {name} {options.flow_shift:g}"
    if options.boundary_ratio is not None:
        if getattr(pipe, "transformer_2", None) is None or "boundary_ratio" not in pipe.config:
            raise ValueError(f"--boundary-ratio: {type(pipe).__name__} has no second denoiser here; remove it")
        pipe.register_to_config(boundary_ratio=options.boundary_ratio)
        yield f"the second denoiser takes over at {options.boundary_ratio:g} of the noise"


def _guardrails(pipe: Any, options: DiffusionOptions) -> Iterator[str]:
    """Some pipelines take the switch when they are loaded, and have no checker by then."""
    if options.no_guardrails:
        if getattr(pipe, "safety_checker", None) is not None:
            pipe.register_modules(safety_checker=None)
            if "requires_safety_checker" in pipe.config:
                pipe.register_to_config(requires_safety_checker=False)
        yield "no safety check looks at the pictures"


def _autoencoder(pipe: Any, options: DiffusionOptions) -> Iterator[str]:
    vae = getattr(pipe, "vae", None)
    wanted = {"slicing": options.vae_use_slicing, "tiling": options.vae_use_tiling}
    for name in (name for name, asked in wanted.items() if asked):
        if not hasattr(vae, f"use_{name}"):
            kind = type(vae).__name__ if vae is not None else f"{type(pipe).__name__} without an autoencoder"
            raise ValueError(f"--vae-use-{name}: {kind} has no {name}; remove it")
        getattr(vae, f"enable_{name}")()
        yield f"the autoencoder works with {name}"
    if options.vae_fast_path == "channels_last":
        if vae is None:
            raise ValueError(f"--vae-fast-path: {type(pipe).__name__} has no autoencoder; remove it")
        yield from _channels_last(vae)


def _channels_last(vae: torch.nn.Module) -> Iterator[str]:
    dimensions = {module.weight.dim() for module in vae.modules() if isinstance(module, _CONVOLUTIONS)}
    for dimension, layout in _LAYOUTS.items():
        if dimension in dimensions:
            _lay_out(vae, dimension, layout)
            yield f"the autoencoder's {dimension - 2}-dimensional convolutions are channels_last"


def _lay_out(vae: torch.nn.Module, dimension: int, layout: torch.memory_format) -> None:
    """By hand: Module.to(memory_format=...) refuses a model that has weights of both dimensions."""
    for parameter in vae.parameters():
        if parameter.dim() == dimension:
            parameter.data = parameter.data.contiguous(memory_format=layout)


_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
