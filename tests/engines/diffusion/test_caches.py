"""Every cache skips work, gives equal pictures for equal requests, and leaves nothing behind."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import NucleusMoEImagePipeline, NucleusMoEImageTransformer2DModel

from app.engines.diffusion.caches import request_caches
from app.engines.diffusion.compile import compile_denoisers
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.siblings import shell
from tests.engines.diffusion.drawing import counted, draw, given

CONFIGS: dict[str, dict[str, Any]] = {
    "first_block": {"threshold": 0.6},
    "tea_cache": {"rel_l1_thresh": 0.6},
    "mag_cache": {"mag_ratios": [1.0] * 12},
    "sea_cache": {"threshold": 5.0},
    "taylorseer": {"cache_interval": 3, "disable_cache_before_step": 2},
    "pab": {},
    "faster_cache": {},
    "cache_dit": {"residual_diff_threshold": 5.0, "max_warmup_steps": 2},
}
"""Settings under which a tiny model skips something in 12 steps."""


class Drawer:
    """Draws with shells of one pipeline, as the engine does, and counts the denoisers' linear layers."""

    def __init__(self, pipe: Any, backend: str = "none", **config: Any) -> None:
        self.pipe = pipe
        self.layers = [
            module
            for model in denoisers(pipe).values()
            for module in model.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        self.cache = request_caches(pipe, given(cache_backend=backend, cache_config=config or CONFIGS.get(backend, {})))

    def draw(self, steps: int = 12, **more: Any) -> tuple[np.ndarray, int]:
        pipe = shell(self.pipe)
        pipe.set_progress_bar_config(disable=True)
        if type(pipe).__name__ == "Flux2KleinPipeline":
            more |= {"text_encoder_out_layers": (1, 2, 3), "max_sequence_length": 64}
        with counted(*self.layers) as counts:
            if self.cache is None:
                picture = draw(pipe, steps=steps, **more)
            else:
                with self.cache.during(pipe, steps):
                    picture = draw(pipe, steps=steps, **more)
        return picture, sum(counts)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *(("flux", backend) for backend in CONFIGS if backend != "sea_cache"),
        *(("wan", backend) for backend in CONFIGS if backend not in ("taylorseer", "tea_cache")),
        *(("qwenimage", backend) for backend in ("first_block", "taylorseer", "pab", "faster_cache", "cache_dit")),
        ("wan22", "cache_dit"),
        ("flux2klein", "mag_cache"),
        ("zimage", "cache_dit"),
        ("sd3", "cache_dit"),
    ],
)
def test_work_is_skipped_and_equal_requests_are_equal(
    kind: str, backend: str, tiny_pipeline: Callable[[str], Any]
) -> None:
    plain, all_layers = Drawer(tiny_pipeline(kind)).draw()
    drawer = Drawer(tiny_pipeline(kind), backend)
    first, layers = drawer.draw()
    drawer.draw(steps=5, prompt="something else")
    again, layers_again = drawer.draw()
    assert layers_again == layers < all_layers
    assert np.array_equal(first, again)
    assert 0 < np.abs(first - plain).mean() < 0.05


@pytest.mark.parametrize("backend", ["first_block", "taylorseer", "pab", "faster_cache", "cache_dit"])
@pytest.mark.parametrize("kind", ["flux", "qwenimage"])
def test_the_passes_of_guidance_are_kept_apart(kind: str, backend: str, tiny_pipeline: Callable[[str], Any]) -> None:
    """With a pass of its own for the negative prompt twice the work is done, and twice the work is skipped."""
    drawer = Drawer(tiny_pipeline(kind), backend)
    guided = {"negative_prompt": "blue", "true_cfg_scale": 4.0}
    _, one_pass = drawer.draw()
    picture, two_passes = drawer.draw(**guided)
    assert two_passes == 2 * one_pass
    plain, _ = Drawer(tiny_pipeline(kind)).draw(**guided)
    assert np.abs(picture - plain).mean() < 0.05


def test_a_sibling_that_does_not_name_its_passes_is_served(tiny_pipeline: Callable[[str], Any]) -> None:
    from diffusers import FluxImg2ImgPipeline

    assert "cache_context" not in inspect.getsource(FluxImg2ImgPipeline.__call__)
    drawer = Drawer(tiny_pipeline("flux"), "first_block")
    counts = []
    for cache in (drawer.cache, None):
        pipe = shell(drawer.pipe, FluxImg2ImgPipeline)
        pipe.set_progress_bar_config(disable=True)
        image = torch.zeros(1, 3, 64, 64)
        with counted(*drawer.layers) as layers:
            if cache is not None:
                with cache.during(pipe, 12):
                    draw(pipe, steps=12, image=image, strength=1.0)
            else:
                drawer.pipe.transformer.disable_cache()
                draw(pipe, steps=12, image=image, strength=1.0)
        counts.append(sum(layers))
    assert counts[0] < counts[1]


def test_nothing_is_left_of_a_request_that_was_abandoned(tiny_pipeline: Callable[[str], Any]) -> None:
    class AbandonedError(Exception):
        pass

    def abandon(*_: Any) -> None:
        if next(calls) == 6:
            raise AbandonedError

    for backend in ("first_block", "pab", "cache_dit"):
        drawer = Drawer(tiny_pipeline("flux"), backend)
        expected, _ = drawer.draw()
        calls = iter(range(100))
        hook = drawer.pipe.transformer.register_forward_pre_hook(abandon)
        with pytest.raises(AbandonedError):
            drawer.draw()
        hook.remove()
        again, _ = drawer.draw()
        assert np.array_equal(again, expected), backend


def test_cache_dit_works_with_compiled_blocks(tiny_pipeline: Callable[[str], Any]) -> None:
    torch.compiler.reset()
    expected, _ = Drawer(tiny_pipeline("flux"), "cache_dit").draw(steps=6)
    drawer = Drawer(tiny_pipeline("flux"), "cache_dit")
    drawer.layers = []  # a hook within a compiled block is compiled anew for each picture
    options = given(cache_backend="cache_dit", diffusion_compile_granularity="regional")
    list(compile_denoisers(denoisers(drawer.pipe), options, "eager"))
    compiled, _ = drawer.draw(steps=6)
    plain, _ = Drawer(tiny_pipeline("flux")).draw(steps=6)
    assert np.abs(compiled - expected).max() < 1e-5
    assert np.abs(compiled - plain).max() > 1e-4


def test_ratios_of_mag_cache_are_measured(
    tiny_pipeline: Callable[[str], Any], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    drawer = Drawer(tiny_pipeline("wan"), "mag_cache", calibrate=True)
    plain, all_layers = Drawer(tiny_pipeline("wan")).draw(steps=4)
    with caplog.at_level(logging.INFO, "app.diffusion"):
        measured, layers = drawer.draw(steps=4)
    assert layers == all_layers
    assert np.array_equal(measured, plain)
    [record] = caplog.records
    assert record.getMessage().startswith('mag_cache measured transformer: {"mag_ratios": [1.00000, ')
    assert record.getMessage().count(",") == 3
    assert capsys.readouterr().out == ""


def test_flux_has_ratios_of_its_own(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("flux")
    _, all_layers = Drawer(tiny_pipeline("flux")).draw()
    drawer = Drawer(pipe, "mag_cache", threshold=0.5)
    assert drawer.draw()[1] < all_layers


def test_a_plan_of_steps_for_cache_dit(tiny_pipeline: Callable[[str], Any]) -> None:
    counts = [
        Drawer(
            tiny_pipeline("flux"),
            "cache_dit",
            scm_steps_mask_policy=policy,
            scm_steps_policy="static",
            max_continuous_cached_steps=-1,
            residual_diff_threshold=5.0,
        ).draw(steps=9)[1]
        for policy in ("slow", "ultra")
    ]
    assert counts[0] > counts[1]


def test_taylorseer_within_cache_dit_changes_what_is_reused(tiny_pipeline: Callable[[str], Any]) -> None:
    config = CONFIGS["cache_dit"]
    plain, layers = Drawer(tiny_pipeline("flux"), "cache_dit", **config).draw()
    drawer = Drawer(tiny_pipeline("flux"), "cache_dit", **config, enable_taylorseer=True)
    predicted, same_layers = drawer.draw()
    assert layers == same_layers
    assert not np.array_equal(plain, predicted)
    assert np.array_equal(drawer.draw()[0], predicted)


def test_the_summary_says_how_much_was_reused(
    tiny_pipeline: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tiny_pipeline("flux")
    cache = request_caches(
        pipe, given(cache_backend="cache_dit", cache_config=CONFIGS["cache_dit"], enable_cache_dit_summary=True)
    )
    assert cache is not None
    own = shell(pipe)
    with caplog.at_level(logging.INFO, "app.diffusion"), cache.during(own, 12):
        draw(own, steps=12)
    assert caplog.messages == ["cache_dit reused 8 of 12 steps"]


def test_text_is_projected_once_a_request(tiny_pipeline: Callable[[str], Any]) -> None:
    parts = tiny_pipeline("qwenimage")
    torch.manual_seed(0)
    transformer = NucleusMoEImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
        moe_enabled=False,
    )
    pipe = NucleusMoEImagePipeline(transformer, parts.scheduler, parts.vae, text_encoder=None, processor=None)
    projections = [block.encoder_proj for block in transformer.transformer_blocks]
    text = torch.randn(2, 1, 7, 32, generator=torch.Generator().manual_seed(0))
    prompts = {"prompt": None, "prompt_embeds": text[0], "negative_prompt_embeds": text[1], "guidance_scale": 4.0}
    masks = dict.fromkeys(("prompt_embeds_mask", "negative_prompt_embeds_mask"), torch.ones(1, 7, dtype=torch.long))
    pictures, counts = [], []
    for backend in ("none", "text_kv"):
        cache = request_caches(pipe, given(cache_backend=backend))
        own = shell(pipe)
        own.set_progress_bar_config(disable=True)
        with counted(*projections) as projected, nullcontext() if cache is None else cache.during(own, 4):
            pictures.append(draw(own, **prompts, **masks))
        counts.append(projected)
    assert counts == [[8, 8], [2, 2]]
    assert np.array_equal(*pictures)


def test_tea_cache_says_what_it_is(tiny_pipeline: Callable[[str], Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "app.diffusion"):
        Drawer(tiny_pipeline("flux"), "tea_cache")
    assert "diffusers has no TeaCache" in caplog.text


@pytest.mark.parametrize(
    ("kind", "backend", "config", "told"),
    [
        ("flux", "sea_cache", {}, "works with WanPipeline and Cosmos3OmniPipeline, and would do nothing for FluxPip"),
        ("flux", "text_kv", {}, "text_kv finds nothing to keep in the transformer of this pipeline"),
        ("wan", "taylorseer", {}, "taylorseer finds nothing to keep in the transformer"),
        ("wan", "mag_cache", {"threshold": 0.1}, "needs mag_ratios, which belong to a model: start once with"),
        ("flux2klein", "first_block", {}, r"does not work with the blocks of transformer \(Flux2Transformer2DModel\)"),
        (
            "sd",
            "first_block",
            {},
            r"the unet of this pipeline \(UNet2DConditionModel\), which diffusers gives no cache",
        ),
        ("sd", "cache_dit", {}, "cache_dit does not know StableDiffusionPipeline"),
        ("flux", "first_block", {"rdt": 1}, "--cache-config of first_block: .*unknown field `rdt`; it takes threshold"),
        ("flux", "cache_dit", {"Fn": 1}, "it takes Fn_compute_blocks, Bn_compute_blocks"),
        ("flux", "text_kv", {"x": 1}, "it takes nothing"),
    ],
)
def test_what_cannot_work_is_refused(
    kind: str, backend: str, config: dict[str, Any], told: str, tiny_pipeline: Callable[[str], Any]
) -> None:
    with pytest.raises(ValueError, match=told):
        request_caches(tiny_pipeline(kind), given(cache_backend=backend, cache_config=config))


def test_no_cache_is_none(tiny_pipeline: Callable[[str], Any]) -> None:
    assert request_caches(tiny_pipeline("flux"), given()) is None
