"""What --cache-config may say, by cache backend, and the object of diffusers that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
import torch
from diffusers import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    SeaCacheConfig,
    TaylorSeerCacheConfig,
)
from diffusers.hooks import TextKVCacheConfig
from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS

from app.engines.diffusion.options import DiffusionOptions

Range = tuple[int, int]
"""Time steps of the scheduler, from 0 (the finished picture) to 1000, both ends excluded."""


class FirstBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rest of the blocks is skipped where the first one's output changed by less than the share `threshold`."""

    threshold: float = 0.05


class Tea(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TeaCache's bound for the change between two steps, which first_block judges by the first block's output."""

    rel_l1_thresh: float = 0.2


class Mag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps are skipped by the ratios of successive residuals, which one request with `calibrate` measures."""

    threshold: float = 0.24
    max_skip_steps: int = 5
    retention_ratio: float = 0.1
    mag_ratios: tuple[float, ...] = ()
    calibrate: bool = False


class Sea(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps are skipped while the filtered latents change by less than `threshold` in all."""

    threshold: float = 0.25
    residual_order: Literal[0, 1] = 1
    retention_steps: int = 1
    cache_end_steps: int = 1
    max_consecutive_cached: int = 2
    power_exp: float = 3.0


class TaylorSeer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention is computed every `cache_interval` steps and continued as a polynomial of `max_order` between."""

    cache_interval: int = 5
    disable_cache_before_step: int = 3
    disable_cache_after_step: int | None = None
    max_order: int = 1
    taylor_factors_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    use_lite_mode: bool = False


class Pab(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pyramid attention broadcast: attention is computed every n-th step within a range of time steps."""

    spatial_attention_block_skip_range: int | None = 2
    temporal_attention_block_skip_range: int | None = None
    cross_attention_block_skip_range: int | None = None
    spatial_attention_timestep_skip_range: Range = (100, 800)
    temporal_attention_timestep_skip_range: Range = (100, 800)
    cross_attention_timestep_skip_range: Range = (100, 800)


class Faster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention is computed every n-th step within a range, and continued from the last two with `attention_weight`."""

    spatial_attention_block_skip_range: int = 2
    temporal_attention_block_skip_range: int | None = None
    spatial_attention_timestep_skip_range: Range = (-1, 681)
    temporal_attention_timestep_skip_range: Range = (-1, 681)
    attention_weight: float = 0.5


class TextKv(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys and values of the text are computed once a request. Nothing to choose."""


class CacheDit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dual block cache: the first `Fn_compute_blocks` decide, by their change, whether the others are skipped.

    `scm_steps_mask_policy` replaces the decision by a plan of steps; `scm_steps_policy` static keeps to it blindly.
    """

    Fn_compute_blocks: int = 1
    Bn_compute_blocks: int = 0
    max_warmup_steps: int = 4
    warmup_interval: int = 1
    max_cached_steps: int = -1
    max_continuous_cached_steps: int = 3
    residual_diff_threshold: float = 0.24
    max_accumulated_residual_diff_threshold: float | None = None
    enable_taylorseer: bool = False
    taylorseer_order: int = 1
    scm_steps_mask_policy: Literal["slow", "medium", "fast", "ultra"] | None = None
    scm_steps_policy: Literal["dynamic", "static"] = "dynamic"


_Settings = TypeVar("_Settings")


def settings(options: DiffusionOptions, kind: type[_Settings]) -> _Settings:
    """--cache-config as `kind`.

    Raises:
        ValueError: it has an unknown key or a wrong value.
    """
    try:
        return msgspec.convert(options.cache_config, kind)
    except msgspec.ValidationError as error:
        taken = ", ".join(field.name for field in msgspec.structs.fields(kind)) or "nothing"  # type: ignore[arg-type]
        raise ValueError(f"--cache-config of {options.cache_backend}: {error}; it takes {taken}") from None


def config_maker(options: DiffusionOptions, class_name: str, timestep: Callable[[], float]) -> Callable[[int], Any]:
    """What makes diffusers' config for a number of steps. `class_name` is the pipeline's; `timestep` the current one.

    Raises:
        ValueError: --cache-config is wrong.
    """
    match options.cache_backend:
        case "first_block":
            threshold = settings(options, FirstBlock).threshold
            return lambda _: FirstBlockCacheConfig(threshold=threshold)
        case "tea_cache":
            bound = settings(options, Tea).rel_l1_thresh
            return lambda _: FirstBlockCacheConfig(threshold=bound)
        case "mag_cache":
            return _mag(settings(options, Mag), class_name)
        case "sea_cache":
            sea = msgspec.structs.asdict(settings(options, Sea))
            return lambda _: SeaCacheConfig(**sea)
        case "taylorseer":
            taylor = msgspec.structs.asdict(settings(options, TaylorSeer))
            taylor["taylor_factors_dtype"] = getattr(torch, taylor["taylor_factors_dtype"])
            return lambda _: TaylorSeerCacheConfig(**taylor)
        case "pab":
            pab = msgspec.structs.asdict(settings(options, Pab))
            return lambda _: PyramidAttentionBroadcastConfig(**pab, current_timestep_callback=timestep)
        case "faster_cache":
            return _faster(settings(options, Faster), timestep)
        case _:
            settings(options, TextKv)
            return lambda _: TextKVCacheConfig()


def _mag(given: Mag, class_name: str) -> Callable[[int], Any]:
    ratios = list(given.mag_ratios)
    if not ratios and not given.calibrate:
        if not class_name.startswith("Flux"):
            raise ValueError(
                "--cache-config of mag_cache needs mag_ratios, which belong to a model: start once with "
                '{"calibrate": true} and take them from the log of the first request'
            )
        ratios = FLUX_MAG_RATIOS.tolist()
    arguments = {
        "threshold": given.threshold,
        "max_skip_steps": given.max_skip_steps,
        "retention_ratio": given.retention_ratio,
        "calibrate": given.calibrate,
        "mag_ratios": ratios or None,
    }
    # one step more than there are keeps the measured ratios, which diffusers else prints and forgets
    return lambda steps: MagCacheConfig(**arguments, num_inference_steps=steps + given.calibrate)


def _faster(given: Faster, timestep: Callable[[], float]) -> Callable[[int], Any]:
    arguments = msgspec.structs.asdict(given)
    weight = arguments.pop("attention_weight")
    # Guidance counts as distilled: both of its passes are computed, whether the pipeline makes them at once or not.
    return lambda _: FasterCacheConfig(
        **arguments,
        is_guidance_distilled=True,
        attention_weight_callback=lambda _: weight,
        current_timestep_callback=timestep,
    )
