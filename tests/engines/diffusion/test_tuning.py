from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AsymmetricAutoencoderKL

from app.engines.diffusion.tuning import tune
from tests.engines.diffusion.drawing import counted, draw, given


def test_nothing_is_done_unasked(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe)
    assert tune(pipe, given()) == []
    assert np.array_equal(draw(pipe), before)


def test_slicing_decodes_one_by_one(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    latents = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    whole = pipe.vae.decode(latents).sample
    tune(pipe, given(vae_use_slicing=True))
    with counted(pipe.vae.decoder) as counts, torch.no_grad():
        sliced = pipe.vae.decode(latents).sample
    assert counts == [3]
    assert torch.allclose(sliced, whole, atol=1e-5)


def test_tiling_decodes_in_pieces(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    tune(pipe, given(vae_use_tiling=True))
    size = 2 * pipe.vae.tile_latent_min_size
    with counted(pipe.vae.decoder) as counts, torch.no_grad():
        pipe.vae.decode(torch.randn(1, 4, size, size))
    assert counts[0] >= 4


def test_an_autoencoder_without_them_is_told(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("sd")
    pipe.vae = AsymmetricAutoencoderKL(down_block_out_channels=(32,), up_block_out_channels=(32,))
    with pytest.raises(ValueError, match="--vae-use-tiling: AsymmetricAutoencoderKL has no tiling; remove it"):
        tune(pipe, given(vae_use_tiling=True))


@pytest.mark.parametrize(
    ("kind", "convolution", "layout"),
    [("flux", torch.nn.Conv2d, torch.channels_last), ("wan", torch.nn.Conv3d, torch.channels_last_3d)],
)
def test_channels_last(
    kind: str, convolution: type, layout: torch.memory_format, tiny_pipeline: Callable[[str], Any]
) -> None:
    pipe = tiny_pipeline(kind)
    before = draw(pipe, steps=2)
    assert tune(pipe, given(vae_fast_path="channels_last"))
    weights = [module.weight for module in pipe.vae.modules() if isinstance(module, convolution)]
    assert weights
    assert all(weight.is_contiguous(memory_format=layout) for weight in weights)
    assert np.abs(draw(pipe, steps=2) - before).max() < 1e-3


def test_lossless_is_what_we_do_anyway(tiny_pipeline: Callable[[str], Any]) -> None:
    assert tune(tiny_pipeline("flux"), given(vae_fast_path="lossless")) == []


@pytest.mark.parametrize(("kind", "name"), [("wan", "flow_shift"), ("sd3", "shift")])
def test_flow_shift_changes_the_schedule(kind: str, name: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline(kind)
    before = draw(pipe)
    assert tune(pipe, given(flow_shift=9.0)) == [f"the noise schedule has {name} 9"]
    assert pipe.scheduler.config[name] == 9
    assert not np.array_equal(draw(pipe), before)


@pytest.mark.parametrize(
    ("kind", "told"), [("sd", "DDIMScheduler has no shift"), ("flux", "follows the size of the picture")]
)
def test_a_schedule_without_a_shift_is_told(kind: str, told: str, tiny_pipeline: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=f"--flow-shift: the noise schedule of .*{told}; remove it"):
        tune(tiny_pipeline(kind), given(flow_shift=3.0))


def test_boundary_ratio_shares_the_steps(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("wan22")
    shares = []
    for ratio in (0.9, 0.5):
        tune(pipe, given(boundary_ratio=ratio))
        with counted(pipe.transformer, pipe.transformer_2) as counts:
            draw(pipe, steps=8, guidance_scale=1.0)
        assert sum(counts) == 8
        shares.append(counts)
    assert shares[0][0] < shares[1][0]


def test_a_single_denoiser_has_no_boundary(tiny_pipeline: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="--boundary-ratio: WanPipeline has no second denoiser here"):
        tune(tiny_pipeline("wan"), given(boundary_ratio=0.5))


def test_guardrails_go(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("sd")
    looked = torch.nn.Module()
    pipe.register_modules(safety_checker=looked)
    assert tune(pipe, given(no_guardrails=True)) == ["no safety check looks at the pictures"]
    assert pipe.safety_checker is None
    draw(pipe, steps=1)


def test_the_log_says_everything_that_was_done(tiny_pipeline: Callable[[str], Any]) -> None:
    options = given(vae_use_slicing=True, quantization="int8", diffusion_attention_backend="native_math")
    done = tune(tiny_pipeline("flux"), options)
    assert [line.split(":")[0] for line in done] == [
        "the autoencoder works with slicing",
        "transformer",
        "attention of transformer",
    ]
