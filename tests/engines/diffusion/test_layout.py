"""How many ranks a stage needs, and what it is told where that does not add up."""

from __future__ import annotations

from typing import Any

import pytest

from app.engines.diffusion.layout import Layout, layout, layout_problems

OFFLOADED = {"enable_distributed_layerwise_offload": True}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Layout()),
        ({"ulysses_degree": 2, "ring_degree": 2}, Layout(world=4, ulysses=2, ring=2)),
        ({"allgather_degree": 4}, Layout(world=4, ring=4)),
        ({"cfg_parallel_size": 2, "ulysses_degree": 4}, Layout(world=8, cfg=2, ulysses=4)),
        ({"tensor_parallel_size": 2, "num_gpus": 2}, Layout(world=2, tensor=2)),
        ({"use_hsdp": True, "hsdp_shard_size": 4}, Layout(world=4, shard=4)),
        ({"use_hsdp": True, "hsdp_shard_size": 2, "hsdp_replicate_size": 2}, Layout(world=4, shard=2, replicate=2)),
        ({"use_hsdp": True, "cfg_parallel_size": 2}, Layout(world=2, cfg=2, shard=2)),
        ({"use_hsdp": True, "num_gpus": 8, "hsdp_replicate_size": 2}, Layout(world=8, shard=4, replicate=2)),
        ({"enable_distributed_layerwise_offload": True}, Layout()),
        ({"enable_distributed_layerwise_offload": True, "num_gpus": 4}, Layout(world=4, shard=4)),
        (
            {"enable_distributed_layerwise_offload": True, "ulysses_degree": 2, "dlo_no_use_allgather": True},
            Layout(world=2, ulysses=2),
        ),
        ({"cfg_parallel_size": 2, "vae_patch_parallel_size": 2}, Layout(world=2, cfg=2, vae=2)),
    ],
)
def test_the_ranks_of_a_stage(given: dict[str, Any], expected: Layout) -> None:
    assert layout(given) == expected
    assert list(layout_problems(given)) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"allgather_degree": 2, "ring_degree": 2}, "exclude each other: name one way to split"),
        ({"cfg_parallel_size": 3}, "--cfg-parallel-size is 1 or 2, as guidance has two passes; got 3"),
        ({"tensor_parallel_size": 2, "ulysses_degree": 2}, "exclude each other in diffusers"),
        ({"ulysses_mode": "advanced_uaa"}, "needs --ulysses-degree above 1"),
        ({"num_gpus": 4, "ulysses_degree": 2}, "--num-gpus 4 is not what the degrees need: 2"),
        ({"num_gpus": 2}, "--num-gpus 2 is not what the degrees need: 1"),
        ({"vae_patch_parallel_size": 2}, "--vae-patch-parallel-size is 1 or the number of GPUs of the stage, 1; got 2"),
        ({"text_encoder_tp_size": 2}, "--text-encoder-tp-size is 1 or the number of GPUs"),
        ({"hsdp_shard_size": 2}, "--hsdp-shard-size needs --use-hsdp"),
        ({"use_hsdp": True}, "there are none: give --hsdp-shard-size"),
        ({"use_hsdp": True, "tensor_parallel_size": 2}, "both split the weights"),
        ({"use_hsdp": True, "ulysses_degree": 2, "hsdp_replicate_size": 3}, "does not divide the 2 GPUs"),
        ({"use_hsdp": True, "ulysses_degree": 2, "hsdp_shard_size": 4}, "must be the number of GPUs of the stage, 2"),
        ({"cfg_parallel_size": 2, "step_execution": True}, "--step-execution mixes requests on one device"),
        ({"ulysses_degree": 2, "cache_backend": "first_block"}, "which steps to skip"),
        ({"ulysses_degree": 2, "diffusion_compile_granularity": "full"}, "use regional"),
        (OFFLOADED | {"dlo_use_allgather": True}, "gathers layers from several GPUs: give --num-gpus"),
        (OFFLOADED | {"dlo_use_allgather": True, "dlo_no_use_allgather": True}, "exclude each other: name one"),
        (OFFLOADED | {"tensor_parallel_size": 2}, "splits the weights over the GPUs"),
        (OFFLOADED | {"tensor_parallel_size": 2, "dlo_use_allgather": False}, "cannot be offloaded as well"),
        (OFFLOADED | {"num_gpus": 2, "dlo_host_registration_limit_gib": 0.0}, "needs --dlo-no-use-allgather"),
        ({"tensor_parallel_size": 2, "enable_cpu_offload": True}, "cannot be offloaded as well"),
        (
            {"use_hsdp": True, "hsdp_shard_size": 2, "enable_broadcast_weight_load": True}
            | {"hsdp_weight_load_strategy": "pre_sharded"},
            "exclude each other",
        ),
    ],
)
def test_what_does_not_add_up(given: dict[str, Any], told: str) -> None:
    assert told in "\n".join(layout_problems(given))
