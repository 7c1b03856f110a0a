"""Every way of splitting a pipeline over two and four ranks draws the picture of one rank. gloo, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.diffusion.asking import CALLS, PROMPT, Directories
from tests.engines.diffusion.ranks.program import Result
from tests.servers import ROOT

SMALL = {"prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": 4}
TRUE = {"negative_prompt": "blurry low", "true_cfg_scale": 4.0}
GUIDED = {"negative_prompt": "blurry", "guidance_scale": 4.0}
FRAMES = {"num_frames": 5}
HALF = 0.5

TWO: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "guidance, one batch, UNet": ("sd", {"cfg_parallel_size": 2}, GUIDED),
    "guidance, one batch, UNet with more": ("sdxl", {"cfg_parallel_size": 2}, GUIDED),
    "guidance, one batch, transformer": ("sd3", {"cfg_parallel_size": 2}, GUIDED),
    "guidance, in turn": ("qwenimage", {"cfg_parallel_size": 2}, TRUE),
    "guidance, in turn, video": ("wan", {"cfg_parallel_size": 2}, GUIDED | FRAMES),
    "sequence": ("flux", {"ulysses_degree": 2}, {}),
    "sequence, any size": ("flux", {"ulysses_degree": 2, "ulysses_mode": "advanced_uaa"}, {}),
    "sequence, Qwen": ("qwenimage", {"ulysses_degree": 2}, TRUE),
    "sequence, video": ("wan", {"ulysses_degree": 2}, FRAMES),
    "layers": ("flux", {"tensor_parallel_size": 2}, {}),
    "layers, Qwen": ("qwenimage", {"tensor_parallel_size": 2}, TRUE),
    "weights": ("flux", {"use_hsdp": True, "hsdp_shard_size": 2}, {}),
    "weights, video": ("wan", {"use_hsdp": True, "hsdp_shard_size": 2}, FRAMES),
    "weights and guidance": ("qwenimage", {"use_hsdp": True, "cfg_parallel_size": 2}, TRUE),
    "weights, read in part": (
        "flux",
        {"use_hsdp": True, "hsdp_shard_size": 2, "hsdp_weight_load_strategy": "pre_sharded"},
        {},
    ),
    "weights, read by one": (
        "wan",
        {"use_hsdp": True, "hsdp_shard_size": 2, "enable_broadcast_weight_load": True},
        FRAMES,
    ),
    "layers in host memory": (
        "flux",
        {"enable_distributed_layerwise_offload": True, "dlo_resident_layers": 1, "num_gpus": 2},
        {},
    ),
    "layers in host memory, guidance": (
        "wan",
        {"enable_distributed_layerwise_offload": True, "cfg_parallel_size": 2},
        GUIDED | FRAMES,
    ),
    "text encoder": ("qwenimage", {"cfg_parallel_size": 2, "text_encoder_tp_size": 2}, TRUE),
    "tiles": ("sd", {"cfg_parallel_size": 2, "vae_patch_parallel_size": 2}, GUIDED),
    "pictures of a batch": (
        "sd",
        {"cfg_parallel_size": 2, "vae_patch_parallel_size": 2, "vae_parallel_mode": "batch"},
        GUIDED | {"num_images_per_prompt": 3},
    ),
}
FOUR: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "guidance and sequence": ("qwenimage", {"cfg_parallel_size": 2, "ulysses_degree": 2}, TRUE),
    "guidance and layers": ("qwenimage", {"cfg_parallel_size": 2, "tensor_parallel_size": 2}, TRUE),
    "weights, two copies": ("flux", {"use_hsdp": True, "hsdp_shard_size": 2, "hsdp_replicate_size": 2}, {}),
}


def play(
    world: int, cases: dict[str, tuple[str, dict[str, Any], dict[str, Any]]], models: Directories, directory: Path
) -> dict[str, Result]:
    """Run all cases in `world` processes, one after another."""
    given = json.dumps(
        [[kind, str(models(kind)), engine, SMALL | CALLS.get(kind, {}) | more] for kind, engine, more in cases.values()]
    )
    line = [sys.executable, "-m", "tests.engines.diffusion.ranks.program"]
    ranks = [
        subprocess.Popen(
            [*line, str(rank), str(world), str(directory / "meeting"), given],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), "\n".join(errors[-3000:] for _, errors in said)
    results = msgspec.json.decode(said[0][0].splitlines()[-1], type=list[Result])
    return dict(zip(cases, results, strict=True))


@pytest.fixture(scope="module")
def of_two(tiny_pipelines: Directories, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return play(2, TWO, tiny_pipelines, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", TWO)
def test_two_ranks_draw_what_one_draws(name: str, of_two: dict[str, Result]) -> None:
    kind, engine, _ = TWO[name]
    result = of_two[name]
    assert result.difference < 1e-5, result
    assert result.calls == (HALF if "cfg_parallel_size" in engine and kind in ("qwenimage", "wan") else 1)
    if "tensor_parallel_size" in engine or "use_hsdp" in engine or "num_gpus" in engine:
        assert result.parameters < 0.75, "norms and small layers are whole on each rank, the large ones are halved"
    if name == "tiles":
        assert 0 < result.tiles < 1


def test_four_ranks_draw_what_one_draws(tiny_pipelines: Directories, tmp_path: Path) -> None:
    results = play(4, FOUR, tiny_pipelines, tmp_path)
    assert {name: result.difference < 1e-5 for name, result in results.items()} == dict.fromkeys(FOUR, True), results
    assert [result.calls for result in results.values()] == [HALF, HALF, 1]
