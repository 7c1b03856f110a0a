"""The cache of the package cache-dit on the denoisers of a pipeline."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.engines.diffusion.cachesettings import CacheDit, settings
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.passes import Passes

os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "warning")  # read when cache_dit is imported

import cache_dit
from cache_dit.caching.block_adapters import FakeDiffusionPipeline

logger = logging.getLogger("app.diffusion")

_NEVER = 1 << 30
"""More warm-up steps than any request has: nothing is reused."""
_PASSES = 2


class CacheDitCache:
    """Dual block cache with state for one call at a time."""

    def __init__(self, pipe: Any, options: DiffusionOptions) -> None:
        """Raises ValueError: cache-dit does not know the pipeline, or --cache-config is wrong."""
        self._settings = settings(options, CacheDit)
        self._models = denoisers(pipe)
        self._summary = options.enable_cache_dit_summary
        if not cache_dit.BlockAdapterRegister.is_supported(pipe):
            raise ValueError(f"--cache-backend cache_dit does not know {type(pipe).__name__}; remove it")
        adapter = cache_dit.BlockAdapterRegister.get_adapter(pipe)
        # On a pipeline it would patch the class, and with it no sibling of that class; the models are all we need.
        adapter.pipe = FakeDiffusionPipeline()
        cache_dit.enable_cache(adapter, cache_config=self._config(None), calibrator_config=self._calibrator())

    @contextmanager
    def during(self, pipe: Any, steps: int) -> Iterator[None]:
        """Reuse work within the one call of `pipe` that is made within; each call starts from nothing."""
        for model in self._models.values():
            # with both passes of guidance apart, until the first step shows how many there are
            cache_dit.refresh_context(model, cache_config=self._config(steps), calibrator_config=self._calibrator())
        passes = Passes(lambda *_: None, self._after_step)
        with passes.watched(pipe, self._models):
            yield
        if self._summary:
            self._log(passes.step)

    def _config(self, steps: int | None) -> Any:
        given = self._settings
        mask = None
        if given.scm_steps_mask_policy is not None and steps is not None:
            mask = _steps_mask(steps, given.scm_steps_mask_policy)
        return cache_dit.DBCacheConfig(
            Fn_compute_blocks=given.Fn_compute_blocks,
            Bn_compute_blocks=given.Bn_compute_blocks,
            max_warmup_steps=given.max_warmup_steps,
            warmup_interval=given.warmup_interval,
            max_cached_steps=given.max_cached_steps,
            max_continuous_cached_steps=given.max_continuous_cached_steps,
            residual_diff_threshold=given.residual_diff_threshold,
            max_accumulated_residual_diff_threshold=given.max_accumulated_residual_diff_threshold,
            enable_separate_cfg=True,
            steps_computation_mask=mask,
            steps_computation_policy=given.scm_steps_policy,
        )

    def _calibrator(self) -> Any:
        if not self._settings.enable_taylorseer:
            return None
        return cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=self._settings.taylorseer_order)

    def _after_step(self, step: int, passes: int) -> None:
        if step > 0 or passes == _PASSES:
            return
        for context in self._contexts():
            context.cache_config.enable_separate_cfg = False
            if passes > _PASSES:
                context.cache_config.max_warmup_steps = _NEVER

    def _contexts(self) -> Iterator[Any]:
        for model in self._models.values():
            for name in model._context_names:
                yield model._context_manager.get_context(name)

    def _log(self, steps: int) -> None:
        reused = {len(context.get_cached_steps()) for context in self._contexts()}
        logger.info("cache_dit reused %d of %d steps", max(reused), steps)


def _steps_mask(steps: int, policy: str) -> list[int] | None:
    """The plan for that many steps; with too few for a plan all are computed."""
    try:
        return list(cache_dit.steps_mask(total_steps=steps, mask_policy=policy))
    except AssertionError:
        return [1] * steps
