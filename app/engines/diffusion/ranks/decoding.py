"""Decoding on several ranks (--vae-patch-parallel-size): each decodes some of the tiles, or some of the pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from app.engines.diffusion.ranks.world import World


def share_decoding(pipe: Any, mode: Literal["tile", "batch"], world: World) -> str:
    """Share every `decode` of the pipeline's autoencoder; what was done.

    Raises:
        ValueError: the pipeline has no autoencoder, or one that does not decode tile by tile.
    """
    vae = getattr(pipe, "vae", None)
    if vae is None:
        raise ValueError(f"--vae-patch-parallel-size: {type(pipe).__name__} has no autoencoder; remove it")
    if mode == "batch":
        vae.decode = _by_row(vae.decode, world)
        return f"the pictures of a batch are decoded on {world.layout.vae} ranks"
    if not hasattr(vae, "tiled_decode") or hasattr(vae, "clear_cache"):
        raise ValueError(
            f"--vae-patch-parallel-size: {type(vae).__name__} does not decode tiles independently of each other; use "
            "--vae-parallel-mode batch"
        )
    vae.enable_tiling()
    vae.tiled_decode = _by_tile(vae, world)
    return f"the tiles of a picture are decoded on {world.layout.vae} ranks"


def _by_row(decode: Callable[..., Any], world: World) -> Callable[..., Any]:
    """Rows of a batch go round the ranks; where there are fewer rows than ranks, nothing is shared."""
    size, rank = world.layout.vae, world.rank

    def decoded(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        count = latents.shape[0]
        if count < size:
            return decode(latents, *args, **kwargs)
        share = -(-count // size)
        # The last rank may have too few: it decodes some rows again, so that all have equally many.
        rows = [min(rank * share + i, count - 1) for i in range(share)]
        result = decode(latents[rows], *args, **kwargs)
        mine = (result[0] if isinstance(result, tuple) else result.sample).contiguous()
        whole = torch.cat(_gathered(mine, size))
        wanted = whole[[r * share + i for r in range(size) for i in range(share) if r * share + i < count]]
        return (wanted,) if isinstance(result, tuple) else type(result)(sample=wanted)

    return decoded


def _by_tile(vae: Any, world: World) -> Callable[..., Any]:
    """Two passes over the autoencoder's own tiling: one in which each rank decodes its tiles, and one that blends."""
    tiled, decoder = vae.tiled_decode, vae.decoder
    compute = decoder.forward
    size, rank = world.layout.vae, world.rank

    def decoded(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tiles: list[torch.Tensor] = []
        scale = 2 ** (len(vae.config.block_out_channels) - 1)

        def own(tile: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
            mine = len(tiles) % size == rank
            rows, _, height, width = tile.shape
            shape = (rows, vae.config.out_channels, height * scale, width * scale)
            made = compute(tile, *more, **named) if mine else tile.new_zeros(shape)
            assert made.shape == shape, f"a tile is {tuple(made.shape)} and not {shape}"
            tiles.append(made.contiguous())
            return torch.zeros_like(made)  # blending writes into it

        try:
            decoder.forward = own
            tiled(latents, *args, **kwargs)
            for number, tile in enumerate(tiles):
                dist.broadcast(tile, number % size)
            ready = iter(tiles)
            decoder.forward = lambda *_, **__: next(ready)
            return tiled(latents, *args, **kwargs)
        finally:
            decoder.forward = compute

    return decoded


def _gathered(mine: torch.Tensor, size: int) -> list[torch.Tensor]:
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    return parts
