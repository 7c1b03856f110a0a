from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.caches import request_caches
from app.engines.diffusion.offload import LayerOptions, OffloadConfig, PinLimit, install, offload, offload_config
from app.engines.diffusion.parts import modules
from tests.engines.diffusion.drawing import draw, given

CPU = torch.device("cpu")
ELSEWHERE = 1e-5
"""Weights lie elsewhere in memory then; on some CPUs (AMD's) that changes in which order sums are made."""


def config_of(**config: Any) -> Any:
    return given(diffusion_offload_config=config)


def test_layers_rest_on_disk_and_come_when_needed(tiny_pipeline: Callable[[str], Any], tmp_path: Path) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    options = config_of(mode="layer", components=["transformer"], disk_path=str(tmp_path))
    weights = sum(parameter.numel() * 4 for parameter in pipe.transformer.transformer_blocks.parameters())
    [done] = offload(pipe, options, CPU)
    assert done.startswith(f"the blocks of transformer rest on disk in {tmp_path}/")
    on_disk = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert on_disk > weights
    np.testing.assert_allclose(draw(pipe), before, atol=ELSEWHERE)


def test_what_a_dead_replica_left_on_disk_is_not_taken_for_ours(
    tiny_pipeline: Callable[[str], Any], tmp_path: Path
) -> None:
    options = config_of(mode="layer", disk_path=str(tmp_path))
    left = tmp_path / "omni-layers-999999999-x"
    left.mkdir()
    for kind in ("flux", "wan22"):
        pipe = tiny_pipeline(kind)
        before = draw(pipe, steps=2)
        list(offload(pipe, options, CPU))
        np.testing.assert_allclose(draw(pipe, steps=2), before, atol=ELSEWHERE)
    assert not left.exists()


def test_only_denoisers_rest_on_disk(tiny_pipeline: Callable[[str], Any], tmp_path: Path) -> None:
    options = config_of(mode="layer", disk_path=str(tmp_path), components=["text_encoder_2"])
    with pytest.raises(ValueError, match="only denoisers can rest on disk; text_encoder_2 is none"):
        list(offload(tiny_pipeline("flux"), options, CPU))


def test_whole_parts_move(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    config = OffloadConfig("module", components=("transformer", "text_encoder_2"))
    assert list(install(pipe, config, CPU)) == ["the pipeline's parts rest in host memory, except text_encoder, vae"]
    assert [name for name, part in modules(pipe).items() if hasattr(part, "_hf_hook")] == [
        "text_encoder_2",
        "transformer",
    ]
    assert np.array_equal(draw(pipe), before)


def test_layers_of_denoiser_and_text_encoders_move(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    assert list(install(pipe, OffloadConfig("layer"), CPU)) == [
        "the layers of text_encoder rest in host memory",
        "the layers of text_encoder_2 rest in host memory",
        "the blocks of transformer rest in host memory",
    ]
    assert not hasattr(pipe.vae, "_diffusers_hook")
    assert np.array_equal(draw(pipe), before)


@pytest.mark.parametrize("backend", ["cache_dit", "first_block"])
def test_caches_work_on_blocks_that_move(backend: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pictures = []
    for config in (None, OffloadConfig("layer")):
        pipe = tiny_pipeline("flux")
        if config is not None:
            list(install(pipe, config, CPU))
        cache = request_caches(pipe, given(cache_backend=backend))
        assert cache is not None
        with cache.during(pipe, 8):
            pictures.append(draw(pipe, steps=8))
    assert np.array_equal(*pictures)


def test_the_first_blocks_can_stay(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    config = OffloadConfig("layer", components=("transformer",), layer_options=LayerOptions(resident_layers=3))
    assert list(install(pipe, config, CPU)) == ["1 blocks of transformer rest in host memory, 3 stay on the device"]
    blocks = [*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks]
    moving = [any(hasattr(part, "_diffusers_hook") for part in block.modules()) for block in blocks]
    assert moving == [False, False, False, True]
    assert np.array_equal(draw(pipe), before)
    everything = OffloadConfig("layer", components=("transformer",), layer_options=LayerOptions(resident_layers=4))
    with pytest.raises(ValueError, match="resident_layers is 4, and transformer has 4 blocks: nothing would move"):
        list(install(tiny_pipeline("flux"), everything, CPU))


def test_on_the_cpu_there_is_nothing_to_save(tiny_pipeline: Callable[[str], Any]) -> None:
    flags = ("enable_cpu_offload", "enable_layerwise_offload", "enable_distributed_layerwise_offload")
    for options in (*(given(**{flag: True}) for flag in flags), config_of(mode="module")):
        with pytest.raises(ValueError, match="this stage computes there: remove it, or let layers rest on disk"):
            list(offload(tiny_pipeline("sd"), options, CPU))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, ""),
        ({"mode": "half"}, "--diffusion-offload-config: Invalid enum value 'half'"),
        ({"components": ["vae"]}, "missing required field `mode`"),
        ({"mode": "layer", "layer_options": {"resident": 1}}, "unknown field `resident`"),
        ({"mode": "module", "disk_path": "/tmp"}, "belong to the mode layer"),
        ({"mode": "layer", "disk_path": "/tmp", "layer_options": {"resident_layers": 1}}, "remove resident_layers"),
    ],
)
def test_the_config_is_checked(config: dict[str, Any], told: str) -> None:
    if not told:
        assert offload_config(config_of(**config)) is None
        return
    with pytest.raises(ValueError, match=told):
        offload_config(config_of(**config))


def test_parts_are_named_right(tiny_pipeline: Callable[[str], Any], tmp_path: Path) -> None:
    options = config_of(mode="layer", disk_path=str(tmp_path), components=["unet", "transformer"])
    with pytest.raises(ValueError, match="the pipeline has no transformer; its components are text_encoder, unet, vae"):
        list(offload(tiny_pipeline("sd"), options, CPU))


def test_both_flags_are_modes() -> None:
    by_module, by_layer = (
        offload_config(given(enable_cpu_offload=True)),
        offload_config(given(enable_layerwise_offload=True)),
    )
    assert by_module is not None
    assert by_layer is not None
    assert (by_module.mode, by_layer.mode) == ("module", "layer")


def test_the_distributed_flag_is_the_mode_of_layers() -> None:
    options = given(
        enable_distributed_layerwise_offload=True, dlo_resident_layers=3, dlo_host_registration_limit_gib=0.5
    )
    expected = OffloadConfig("layer", layer_options=LayerOptions(3), pin_limit_gib=0.5)
    assert offload_config(options) == expected


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({}, [True, True, True]),
        ({"pin_memory": False}, [False, False, False]),
        ({"pin_limit_gib": 900 / (1 << 30)}, [True, True, False]),
        ({"pin_limit_gib": 0.0}, [False, False, False]),
    ],
)
def test_host_memory_is_locked_up_to_a_limit(config: dict[str, Any], taken: list[bool]) -> None:
    limit = PinLimit(OffloadConfig("layer", **config))
    parts = [torch.nn.Linear(10, 10, bias=False) for _ in range(3)]  # of 400 bytes each
    assert [limit.take(part) for part in parts] == taken


def test_blocks_are_counted_one_by_one_where_there_is_a_limit(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    config = OffloadConfig("layer", components=("transformer",), pin_limit_gib=0.0)
    assert list(install(pipe, config, CPU)) == ["4 blocks of transformer rest in host memory, 0 stay on the device"]
    assert np.array_equal(draw(pipe), before)
