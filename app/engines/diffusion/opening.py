"""Everything that a diffusion stage needs to draw, opened once: by a replica that is alone, or by each of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.engines.device import compute_device
from app.engines.diffusion.batching import RowQueue
from app.engines.diffusion.caches import request_caches
from app.engines.diffusion.eightbits import eight_bits
from app.engines.diffusion.hostweights import kept
from app.engines.diffusion.layout import layout
from app.engines.diffusion.loading import Say, load
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.offer import Offer, survey
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.pieces import Pieces
from app.engines.diffusion.profiler import Profiler
from app.engines.diffusion.ranks.group import Group
from app.engines.diffusion.run import Runner
from app.engines.diffusion.sleeping import Sleeper
from app.engines.diffusion.stepping import Stepper
from app.engines.diffusion.tuning import tune
from app.settings.schema import StageConfig

if TYPE_CHECKING:
    from app.engines.diffusion.ranks.shares import Shares

logger = logging.getLogger("app.diffusion")


class Opened(msgspec.Struct, frozen=True):
    """A loaded pipeline: what it offers, who runs it, and what waits for that."""

    offer: Offer
    runner: Runner
    queue: RowQueue
    adapters: Adapters
    sleeper: Sleeper | None


def open_pipeline(
    stage: StageConfig, options: DiffusionOptions, rank: int = 0, meeting: str = "", group: Group | None = None
) -> Opened:
    """Load the stage's pipeline. Of several ranks each does so, and they meet at `meeting`; rank 0 has the `group`.

    Raises:
        ValueError: an option cannot be had with this pipeline.
        Exception: diffusers' reason why the pipeline cannot be loaded.
    """
    model, shared = kept(options, stage.model), layout(stage.engine_args)
    if shared.world == 1:
        return _opened(options, partial(load, options, model), logger.info)
    from app.engines.diffusion.ranks.shares import Shares
    from app.engines.diffusion.ranks.world import join, rank_device

    device = rank_device(options.device, rank, compute_device(options.device))
    options = msgspec.structs.replace(options, device=str(device))
    shares = Shares(join(meeting, rank, shared, device), Path(model))
    say = logger.info if rank == 0 else logger.debug
    return _opened(options, partial(load, options, model, rank=rank), say, group, shares)


def _opened(
    options: DiffusionOptions,
    load_with: Callable[[Say], Any],
    say: Say,
    group: Group | None = None,
    shares: Shares | None = None,
) -> Opened:
    pipe = load_with(say)
    for line in tune(pipe, options, shares.split(pipe, options) if shares else ()):
        say(line)
    device = compute_device(options.device)
    if (kernels := eight_bits(pipe, options, device)) is not None:
        say(f"{len(kernels)} attention layers compute with keys and values of 8 bits")
    offer = survey(pipe, options)
    adapters = Adapters(pipe, options)
    sleeper = Sleeper(pipe, device, partial(load_with, say)) if options.enable_sleep_mode else None
    profiler = Profiler(pipe) if options.enable_diffusion_pipeline_profiler else None
    if options.step_execution:
        queue = RowQueue(1)
        stepper = Stepper(pipe, offer, adapters, options.max_num_seqs, profiler=profiler)
    else:
        queue = RowQueue(options.max_num_seqs, options.batch_wait_s, options.max_loras)
        stepper = None
    runner = Runner(
        pipe,
        offer,
        adapters,
        stepper=stepper,
        cache=request_caches(pipe, options),
        profiler=profiler,
        group=group,
        shares=shares,
        bytes_on_device=options.video_output_transport.enable_device_postprocess,
        eight_bits=kernels,
        pieces=Pieces(pipe) if options.diffusion_streaming_output else None,
    )
    return Opened(offer, runner, queue, adapters, sleeper)
