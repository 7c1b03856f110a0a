"""Reuse of work between the steps of a request. Nothing is carried from one request to the next."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from diffusers.hooks import HookRegistry
from diffusers.hooks._common import _ALL_TRANSFORMER_BLOCK_IDENTIFIERS
from diffusers.hooks._helpers import TransformerBlockRegistry
from diffusers.hooks.faster_cache import FasterCacheBlockHook, FasterCacheBlockState
from diffusers.hooks.hooks import CacheContext, StateManager, _set_cache_context
from diffusers.hooks.mag_cache import MagCacheHeadHook
from diffusers.hooks.pyramid_attention_broadcast import PyramidAttentionBroadcastHook, PyramidAttentionBroadcastState

from app.engines.diffusion.cachesettings import config_maker
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.passes import Passes

logger = logging.getLogger("app.diffusion")

_GIVE_STEPS = ("WanPipeline", "Cosmos3OmniPipeline")
"""Pipelines that tell the cache in which step they are, without which sea_cache computes everything."""
_NO_TIMESTEP = -1e9
"""In no range: attention is computed."""


class Cache(Protocol):
    """`during(pipe, steps)` surrounds one pipeline call of that many steps."""

    def during(self, pipe: Any, steps: int) -> Any: ...


def request_caches(pipe: Any, options: DiffusionOptions) -> Cache | None:
    """The cache that the options ask for, installed on the pipeline's denoisers.

    Raises:
        ValueError: it cannot work with this pipeline, or --cache-config is wrong.
    """
    match options.cache_backend:
        case "none":
            return None
        case "cache_dit":
            from app.engines.diffusion.cachedit import CacheDitCache

            return CacheDitCache(pipe, options)
        case "tea_cache":
            logger.info(
                "tea_cache: diffusers has no TeaCache; its bound is applied to the first block's output instead"
            )
    return HookCache(pipe, options)


class HookCache:
    """One of the caches of diffusers, which hook the blocks or the attention layers of a denoiser."""

    def __init__(self, pipe: Any, options: DiffusionOptions) -> None:
        """Raises ValueError: the cache cannot work with this pipeline, or --cache-config is wrong."""
        self._backend = options.cache_backend
        self._models = denoisers(pipe)
        self._timestep: float = _NO_TIMESTEP
        self._ratios: dict[str, list[float]] = {}
        self._make = config_maker(options, type(pipe).__name__, lambda: self._timestep)
        self._steps = 0
        _check_fits(pipe, self._models, self._backend)
        self._install(steps=28)

    @contextmanager
    def during(self, pipe: Any, steps: int) -> Iterator[None]:
        """Reuse work within the one call of `pipe` that is made within; each call starts from nothing."""
        if self._backend == "mag_cache" and steps != self._steps:
            self._install(steps)  # its plan is made for a number of steps
        self._reset()
        passes = Passes(self._before_pass, self._after_step)
        self._passes, self._pipe, self._ratios = passes, pipe, {}
        try:
            with passes.watched(pipe, self._models):
                yield
            for name, ratios in self._ratios.items():
                told = ", ".join(f"{ratio:.5f}" for ratio in ratios)
                logger.info('mag_cache measured %s: {"mag_ratios": [%s]}', name, told)
        finally:
            self._reset()  # what was kept for the request is memory
            self._pipe = None

    def _install(self, steps: int) -> None:
        self._steps = steps
        for name, model in self._models.items():
            if model.is_cache_enabled:
                model.disable_cache()
            model.enable_cache(self._make(steps))
            if not _hooked(model):
                raise ValueError(
                    f"--cache-backend {self._backend} finds nothing to keep in the {name} of this pipeline "
                    f"({type(model).__name__}); remove it"
                )
            _separate_passes(model)

    def _reset(self) -> None:
        for model in self._models.values():
            model._reset_stateful_cache()

    def _before_pass(self, model: torch.nn.Module, index: int) -> None:
        """Pipelines that keep their passes apart do it by name, the others not at all: here all do it by number."""
        timestep = getattr(self._pipe, "_current_timestep", None) if self._passes.step else None
        self._timestep = _NO_TIMESTEP if timestep is None else float(timestep)
        if self._backend != "sea_cache":
            _set_cache_context(model, CacheContext(f"pass{index}"))

    def _after_step(self, *_: int) -> None:
        """Pipelines reset the caches at the end of a call, so that measured ratios have to be kept on the way."""
        for name, model in self._models.items():
            for state in _measuring(model):
                self._ratios[name] = list(state.calibration_ratios)


def _measuring(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        registry = getattr(module, "_diffusers_hook", None)
        for hook in registry.hooks.values() if registry is not None else ():
            if isinstance(hook, MagCacheHeadHook) and hook.config.calibrate:
                yield from hook.state_manager._state_cache.values()


def _check_fits(pipe: Any, models: Mapping[str, torch.nn.Module], backend: str) -> None:
    for name, model in models.items():
        if not hasattr(model, "enable_cache"):
            raise ValueError(
                f"--cache-backend {backend} does not work with the {name} of this pipeline "
                f"({type(model).__name__}), which diffusers gives no cache; cache_dit may work"
            )
        if backend in ("first_block", "tea_cache"):
            _check_blocks(name, model, backend)
    if backend == "sea_cache" and type(pipe).__name__ not in _GIVE_STEPS:
        raise ValueError(
            f"--cache-backend sea_cache works with {' and '.join(_GIVE_STEPS)}, and would do nothing for "
            f"{type(pipe).__name__}; use cache_dit or first_block"
        )


def _check_blocks(name: str, model: torch.nn.Module, backend: str) -> None:
    """The hook of the first block gives the last one's result: both must return the same things."""
    lists = [
        part
        for child, part in model.named_children()
        if child in _ALL_TRANSFORMER_BLOCK_IDENTIFIERS and isinstance(part, torch.nn.ModuleList)
    ]
    blocks = [block for part in lists for block in part]
    try:
        returned = {TransformerBlockRegistry.get(type(block)).return_encoder_hidden_states_index for block in blocks}
    except ValueError:
        returned = set()
    if len(blocks) < 2 or len(returned) != 1:
        raise ValueError(
            f"--cache-backend {backend} does not work with the blocks of {name} ({type(model).__name__}); "
            "use cache_dit, taylorseer or pab"
        )


def _hooked(model: torch.nn.Module) -> bool:
    """Whether any layer within the model is hooked; a hook on the model alone keeps nothing."""
    registries = (getattr(module, "_diffusers_hook", None) for module in model.modules() if module is not model)
    return any(registry is not None and registry.hooks for registry in registries)


class _PerPass(StateManager):  # type: ignore[misc] # diffusers is not followed
    """Stands for the state of a hook that knows one pass only, and is that of the current pass."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.get_state(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.get_state(), name, value)


def _separate_passes(model: torch.nn.Module) -> None:
    """These two hooks would continue one pass of guidance from the other."""
    kinds = {
        PyramidAttentionBroadcastHook: PyramidAttentionBroadcastState,
        FasterCacheBlockHook: FasterCacheBlockState,
    }
    for module in model.modules():
        registry: HookRegistry | None = getattr(module, "_diffusers_hook", None)
        for hook in registry.hooks.values() if registry is not None else ():
            if type(hook) in kinds:
                hook.state = _PerPass(kinds[type(hook)])
