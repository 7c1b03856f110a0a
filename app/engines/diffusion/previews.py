"""Pictures of what is still being drawn: where the last step was heading, decoded as the pipeline's own end would."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from diffusers import DDIMScheduler

from app.engines.diffusion import pixels

_LARGE = 768 * 768
"""Pixels from which a preview is drawn at half the size, for a quarter of the time."""


def possible(pipe: Any) -> bool:
    """Whether the pipeline hands out its latents after each step, in a layout that is known here."""
    if "callback_on_step_end" not in inspect.signature(type(pipe).__call__).parameters:
        return False
    config = getattr(getattr(pipe, "vae", None), "config", {})
    return "scaling_factor" in config or "latents_mean" in config or hasattr(pipe, "_unpatchify_latents")


def due(step: int, steps: int, count: int) -> int | None:
    """Which of `count` previews is to be made after `step` (from 1) of `steps`, evenly spread; None: none of them."""
    if count <= 0 or step >= steps:
        return None
    number = (step * (count + 1)) // steps - 1
    before = ((step - 1) * (count + 1)) // steps - 1
    return number if number > before else None


def ahead(scheduler: Any, index: int, before: torch.Tensor | None, after: torch.Tensor) -> torch.Tensor:
    """The latents without noise, if the schedule went on in the direction of its step `index` (from 0).

    `before` and `after` are the latents around that step. Where the direction is not known, `after` as it is.
    """
    if before is None or (levels := _noise_levels(scheduler, index)) is None:
        return after
    (old_scale, old_noise), (new_scale, new_noise) = levels
    old, new = before / old_scale, after / new_scale
    return (new - (new - old) * (new_noise / (new_noise - old_noise))).to(after.dtype)


def _noise_levels(scheduler: Any, index: int) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Before and after a step: by how much the latents are scaled, and how much noise is in them once they are not."""
    config, last = scheduler.config, index + 1 >= len(scheduler.timesteps)
    if type(scheduler) is DDIMScheduler and not last:
        kept = [float(scheduler.alphas_cumprod[scheduler.timesteps[i]]) for i in (index, index + 1)]
        old, new = ((share**0.5, (1 / share - 1) ** 0.5) for share in kept)
        return old, new
    flows = config.get("prediction_type", "flow_prediction") == "flow_prediction"
    if flows and not last and not config.get("stochastic_sampling") and hasattr(scheduler, "sigmas"):
        start, end = (float(scheduler.sigmas[i]) for i in (index, index + 1))
        return ((1.0, start), (1.0, end)) if start != end else None
    return None


def decode(pipe: Any, latents: torch.Tensor, width: int, height: int) -> list[pixels.Pixels]:
    """One picture for each row of `latents`, which are as the pipeline's callback gets them; half as large if large.

    `width` and `height` in pixels are those of the finished picture; packed latents do not tell.
    """
    vae, dtype = pipe.vae, pipe.vae.dtype
    unpacked = _normal(pipe, _unpacked(pipe, latents, width, height))
    if width * height > _LARGE:
        unpacked = _halved(unpacked)
    if overflows := dtype == torch.float16 and vae.config.get("force_upcast", False):
        vae.to(torch.float32)
    decoded = vae.decode(unpacked.to(vae.dtype), return_dict=False)[0]
    if overflows:
        vae.to(dtype)
    if decoded.ndim == 5:  # video autoencoders: rows, channels, frames, height, width
        decoded = decoded[:, :, 0]
    values = (decoded / 2 + 0.5).clamp(0, 1)
    return [row[0] for row in pixels.pictures(values)]


def _halved(latents: torch.Tensor) -> torch.Tensor:
    """Each side, of latents with or without a dimension of frames."""
    if latents.ndim == 5:
        return torch.nn.functional.avg_pool3d(latents, (1, 2, 2))
    return torch.nn.functional.avg_pool2d(latents, 2)


def _unpacked(pipe: Any, latents: torch.Tensor, width: int, height: int) -> torch.Tensor:
    if latents.ndim != 3:
        return latents
    if hasattr(pipe, "_unpatchify_latents"):  # Flux.2: tokens in reading order
        side = pipe.vae_scale_factor * 2
        return latents.transpose(1, 2).unflatten(2, (height // side, width // side))
    return pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor)


def _normal(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    """From the denoiser's scale to the autoencoder's."""
    vae, config = pipe.vae, pipe.vae.config
    if hasattr(pipe, "_unpatchify_latents"):
        shape = (1, -1, 1, 1)
        mean = vae.bn.running_mean.view(shape).to(latents)
        deviation = torch.sqrt(vae.bn.running_var.view(shape) + config.batch_norm_eps).to(latents)
        return pipe._unpatchify_latents(latents * deviation + mean)
    if "latents_mean" in config and config.latents_mean is not None:
        shape = (1, -1, *(1,) * (latents.ndim - 2))
        mean = torch.tensor(config.latents_mean).view(shape).to(latents)
        deviation = torch.tensor(config.latents_std).view(shape).to(latents)
        return latents * deviation / config.get("scaling_factor", 1.0) + mean
    return latents / config.scaling_factor + (config.get("shift_factor") or 0.0)
