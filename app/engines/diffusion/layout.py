"""How the ranks of one diffusion replica share the work: world size arithmetic, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec

_DEGREES = (
    "ulysses_degree",
    "ring_degree",
    "allgather_degree",
    "cfg_parallel_size",
    "tensor_parallel_size",
)
"""Arguments whose product is the number of ranks, apart from sharding."""

QUANTIZATION = ("quantization", "quantization_config", "diffusion_quantization_config")
"""Arguments of which each says that weights are quantized."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of the ranks, outermost first: the guidance passes, then one of sequence, tensor or nothing.

    A sequence is split over `ring` x `ulysses` ranks. `shard` > 0: the denoisers' weights are split over so many ranks,
    and the world has `replicate` such copies. `vae` ranks decode a picture, `text` ranks hold a text encoder.
    """

    world: int = 1
    cfg: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    replicate: int = 1
    shard: int = 0
    vae: int = 1
    text: int = 1

    @property
    def sequence(self) -> int:
        return self.ring * self.ulysses


def layout(given: dict[str, Any]) -> Layout:
    """What a stage's engine arguments say; whatever is wrong with them, `layout_problems` tells."""
    sizes = {name: int(given.get(name) or 1) for name in _DEGREES}
    product = prod(sizes.values())
    replicate, shard = _sharding(given, product)
    return Layout(
        world=max(product, replicate * shard, int(given.get("num_gpus") or 1)),
        cfg=sizes["cfg_parallel_size"],
        ring=max(sizes["ring_degree"], sizes["allgather_degree"]),
        ulysses=sizes["ulysses_degree"],
        tensor=sizes["tensor_parallel_size"],
        replicate=replicate,
        shard=shard,
        vae=int(given.get("vae_patch_parallel_size") or 1),
        text=int(given.get("text_encoder_tp_size") or 1),
    )


def _sharding(given: dict[str, Any], product: int) -> tuple[int, int]:
    """(copies, ranks of a copy); (1, 0) where nothing is sharded."""
    if gathers_offloaded(given):
        world = max(product, int(given.get("num_gpus") or 1))
        return 1, world if world > 1 else 0
    if not given.get("use_hsdp"):
        return 1, 0
    replicate, shard = int(given.get("hsdp_replicate_size") or 1), int(given.get("hsdp_shard_size") or -1)
    world = max(product, int(given.get("num_gpus") or 1))
    return replicate, world // replicate if shard < 0 else shard


def gathers_offloaded(given: dict[str, Any]) -> bool:
    """Whether ranks, where there are several, keep parts of the offloaded layers and gather them."""
    alone = given.get("dlo_no_use_allgather") or given.get("dlo_use_allgather") is False
    return bool(given.get("enable_distributed_layerwise_offload")) and not alone


def offloads_modules(given: dict[str, Any]) -> bool:
    """Whether whole parts of the pipeline are kept in host memory while others compute."""
    config = given.get("diffusion_offload_config")
    return bool(given.get("enable_cpu_offload")) or (isinstance(config, dict) and config.get("mode") == "module")


def layout_problems(given: dict[str, Any]) -> Iterator[str]:
    """One sentence for each thing that cannot be, with what to do."""
    found = layout(given)
    product = found.cfg * found.sequence * found.tensor
    if given.get("allgather_degree") and (given.get("ulysses_degree") or given.get("ring_degree")):
        yield "--allgather-degree and --ulysses-degree or --ring-degree exclude each other: name one way to split"
    if found.cfg > 2:
        yield f"--cfg-parallel-size is 1 or 2, as guidance has two passes; got {found.cfg}"
    if found.tensor > 1 and found.sequence > 1:
        yield "--tensor-parallel-size and splitting the sequence exclude each other in diffusers; use one of them"
    if given.get("ulysses_mode") == "advanced_uaa" and (found.ulysses == 1 or found.ring > 1):
        yield "--ulysses-mode advanced_uaa needs --ulysses-degree above 1, and no --ring-degree"
    yield from _sharding_problems(given, found, product)
    yield from _gathering_problems(given, found)
    if given.get("num_gpus") and not found.shard and found.world != product:
        yield (
            f"--num-gpus {found.world} is not what the degrees need: {product}; give --num-gpus {product}, or more of "
            "--cfg-parallel-size, --ulysses-degree or --tensor-parallel-size"
        )
    for name, size in (("vae-patch-parallel-size", found.vae), ("text-encoder-tp-size", found.text)):
        if size not in (1, found.world):
            yield f"--{name} is 1 or the number of GPUs of the stage, {found.world}; got {size}"
    if found.world > 1:
        yield from _alone_only(given, found)


def _sharding_problems(given: dict[str, Any], found: Layout, product: int) -> Iterator[str]:
    for name in ("hsdp_shard_size", "hsdp_replicate_size", "hsdp_weight_load_strategy", "enable_broadcast_weight_load"):
        if given.get(name) and not given.get("use_hsdp"):
            yield f"--{name.replace('_', '-')} needs --use-hsdp"
    if not given.get("use_hsdp"):
        return
    if found.tensor > 1:
        yield "--use-hsdp and --tensor-parallel-size exclude each other: both split the weights"
    automatic = (given.get("hsdp_shard_size") or -1) < 0
    if automatic and found.world == 1:
        yield "--use-hsdp shards over the other GPUs of the stage, and there are none: give --hsdp-shard-size"
    elif automatic and found.world % found.replicate:
        yield f"--hsdp-replicate-size {found.replicate} does not divide the {found.world} GPUs of the stage"
    elif found.replicate * found.shard != found.world or (product > 1 and product != found.world):
        yield (
            f"--hsdp-replicate-size {found.replicate} times --hsdp-shard-size {found.shard} must be the number of GPUs "
            f"of the stage, {max(product, int(given.get('num_gpus') or 1))}"
        )
    in_part = given.get("enable_broadcast_weight_load") or given.get("hsdp_weight_load_strategy") == "pre_sharded"
    if in_part and any(given.get(name) for name in QUANTIZATION):
        yield "weights that are quantized as they are read cannot be read in part; leave one of the two out"
    if given.get("enable_broadcast_weight_load") and given.get("hsdp_weight_load_strategy") == "pre_sharded":
        yield "--enable-broadcast-weight-load and --hsdp-weight-load-strategy pre_sharded exclude each other"


def _gathering_problems(given: dict[str, Any], found: Layout) -> Iterator[str]:
    gathers = gathers_offloaded(given)
    if given.get("dlo_use_allgather") and given.get("dlo_no_use_allgather"):
        yield "--dlo-use-allgather and --dlo-no-use-allgather exclude each other: name one"
    elif given.get("dlo_use_allgather") and gathers and found.world == 1:
        yield "--dlo-use-allgather gathers layers from several GPUs: give --num-gpus, or leave it out"
    if gathers and found.world > 1:
        if found.tensor > 1 or given.get("use_hsdp"):
            yield (
                "--enable-distributed-layerwise-offload splits the weights over the GPUs, as --use-hsdp and "
                "--tensor-parallel-size do: use one of them"
            )
        if given.get("dlo_host_registration_limit_gib") is not None:
            yield "--dlo-host-registration-limit-gib needs --dlo-no-use-allgather: what is gathered is all pinned"


def _alone_only(given: dict[str, Any], found: Layout) -> Iterator[str]:
    """What ranks that work together cannot have."""
    if given.get("step_execution"):
        yield "--step-execution mixes requests on one device; with several GPUs for a picture, remove it"
    if found.sequence > 1 and (given.get("cache_backend") or "none") != "none":
        yield (
            f"--cache-backend {given['cache_backend']} and splitting the sequence exclude each other: each GPU would "
            "decide by its own part which steps to skip; use --cfg-parallel-size or --tensor-parallel-size with it"
        )
    if (found.shard or found.sequence > 1) and given.get("diffusion_compile_granularity") == "full":
        yield "--diffusion-compile-granularity full cannot be split over GPUs; use regional"
    if (found.shard or found.tensor > 1) and given.get("enable_sleep_mode"):
        yield "weights that are split over GPUs cannot be put to sleep; leave --enable-sleep-mode out"
    by_module = offloads_modules(given)
    by_layer = given.get("enable_layerwise_offload") or (
        given.get("enable_distributed_layerwise_offload") and not gathers_offloaded(given)
    )
    if (found.shard or found.tensor > 1) and (by_module or by_layer):
        yield "weights that are split over GPUs cannot be offloaded as well; leave one of the two out"
