"""One rank of several that try ways of splitting tiny pipelines: `python program.py RANK WORLD MEETING CASES`.

CASES is JSON: a list of [kind, model directory, engine arguments, arguments of the call]. Rank 0 prints a JSON list
with a Result for each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from app.engines.diffusion.layout import layout
from app.engines.diffusion.loading import load
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.ranks.shares import Shares
from app.engines.diffusion.ranks.world import World, join
from app.engines.diffusion.tuning import tune

CPU = torch.device("cpu")


class Result(msgspec.Struct):
    """Of one case: how far the picture is from that of one rank, in 0..1; and of this rank its denoisers' calls, their
    parameters and the autoencoder's calls, as shares of those of one rank."""

    difference: float
    calls: float
    parameters: float
    tiles: float


@contextmanager
def _counted(module: Any) -> Iterator[list[int]]:
    count = [0]
    compute = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return compute(*args, **kwargs)

    module.forward = forward
    yield count
    module.forward = compute


def _parameters(pipe: Any) -> int:
    sizes = (
        x.to_local().numel() if hasattr(x, "to_local") else x.numel()
        for m in denoisers(pipe).values()
        for x in m.parameters()
    )
    return sum(sizes)


def _drawn(pipe: Any, arguments: dict[str, Any]) -> Any:
    count = arguments.get("num_images_per_prompt", 1)
    noise = [torch.Generator("cpu").manual_seed(7 + i) for i in range(count)]
    made = pipe(**arguments, generator=noise if count > 1 else noise[0], output_type="np")[0]
    return np.asarray(made)


def _play(rank: int, world: int, case: list[Any]) -> Result:
    _, model, engine, arguments = case
    options = DiffusionOptions(dtype="float32", device="cpu", **engine)
    found = layout(engine)
    assert found.world == world, found
    whole = load(DiffusionOptions(dtype="float32", device="cpu"), model, lambda line: None)
    pipe = load(options, model, lambda line: None, rank=rank)
    name = next(iter(denoisers(pipe)))
    if options.vae_parallel_mode == "tile" and options.vae_patch_parallel_size > 1:
        for vae in (whole.vae, pipe.vae):
            vae.enable_tiling()
            vae.tile_sample_min_size, vae.tile_latent_min_size = 32, 32 // pipe.vae_scale_factor
    with _counted(getattr(whole, name)) as calls, _counted(whole.vae.decoder) as tiles:
        expected = _drawn(whole, arguments)
        alone, tiles_alone = calls[0], tiles[0]
    with _counted(getattr(pipe, name)) as calls, _counted(pipe.vae.decoder) as tiles:
        shares = Shares(World(rank, found, CPU), Path(model))
        # on a CPU, which saves nothing by it, tune() itself refuses
        tuned = msgspec.structs.replace(options, enable_distributed_layerwise_offload=False)
        tune(pipe, tuned, shares.split(pipe, options))
        with shares.during(pipe, arguments):
            made = _drawn(pipe, arguments)
        return Result(
            float(np.abs(made - expected).max()),
            calls[0] / alone,
            _parameters(pipe) / _parameters(whole),
            tiles[0] / tiles_alone,
        )


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    cases = json.loads(sys.argv[4])
    join(sys.argv[3], rank, layout({"num_gpus": world}), CPU)
    results = [_play(rank, world, case) for case in cases]
    if rank == 0:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
