from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from app.engines.diffusion.attention import set_attention
from app.engines.diffusion.parts import denoisers
from tests.engines.diffusion.drawing import draw, given

CPU = torch.device("cpu")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that run, in order."""
    names: list[str] = []
    for backend, kernel in list(_AttentionBackendRegistry._backends.items()):

        def spy(*args: Any, _name: str = backend.value, _kernel: Any = kernel, **kwargs: Any) -> Any:
            names.append(_name)
            return _kernel(*args, **kwargs)

        monkeypatch.setitem(_AttentionBackendRegistry._backends, backend, spy)
    return names


def choose(pipe: Any, **options: Any) -> list[str]:
    return list(set_attention(denoisers(pipe), given(**options), CPU))


@pytest.mark.parametrize(
    ("name", "kernel"), [("TORCH_SDPA", "native"), ("native_math", "_native_math"), ("_native_flash", "_native_flash")]
)
def test_one_kernel_for_all_layers(
    name: str, kernel: str, tiny_pipeline: Callable[[str], Any], called: list[str]
) -> None:
    pipe = tiny_pipeline("wan")
    before = draw(pipe, steps=2)
    done = choose(pipe, diffusion_attention_backend=name)
    called.clear()
    after = draw(pipe, steps=2)
    assert set(called) == {kernel}
    assert np.abs(before - after).max() < 1e-5
    assert done == [f"attention of transformer: cross {name}, self {name}"]


def test_a_kernel_by_role(tiny_pipeline: Callable[[str], Any], called: list[str]) -> None:
    pipe = tiny_pipeline("wan")
    config = {"default": {"backend": "native"}, "per_role": {"cross": "native_math"}}
    choose(pipe, diffusion_attention_config=config)
    called.clear()
    draw(pipe, steps=1, guidance_scale=1.0)
    blocks = len(pipe.transformer.blocks)
    assert called == ["native", "_native_math"] * blocks


def test_text_and_picture_together_are_a_role(tiny_pipeline: Callable[[str], Any], called: list[str]) -> None:
    pipe = tiny_pipeline("flux")
    done = choose(pipe, diffusion_attention_config={"per_role": {"joint": "native_math"}})
    called.clear()
    draw(pipe, steps=1)
    joint, single = len(pipe.transformer.transformer_blocks), len(pipe.transformer.single_transformer_blocks)
    assert called == ["_native_math"] * joint + ["native"] * single
    assert done == ["attention of transformer: joint native_math, self native"]


def test_one_pipeline_s_choice_is_not_another_s(tiny_pipeline: Callable[[str], Any], called: list[str]) -> None:
    choose(tiny_pipeline("flux"), diffusion_attention_backend="native_math")
    called.clear()
    draw(tiny_pipeline("flux"), steps=1)
    assert set(called) == {"native"}


def test_nothing_is_done_unasked(tiny_pipeline: Callable[[str], Any]) -> None:
    assert choose(tiny_pipeline("sd")) == []


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("flux", {"diffusion_attention_backend": "FLASHINFER_ATTN"}, "unknown attention kernel 'FLASHINFER_ATTN'"),
        ("flux", {"diffusion_attention_backend": "FLASH_ATTN"}, "FLASH_ATTN does not run here: .* These do: .*native"),
        ("flux", {"diffusion_attention_backend": "CUDNN_ATTN"}, "CUDNN_ATTN does not run here"),
        ("sd", {"diffusion_attention_backend": "native_math"}, r"of unet \(UNet2DConditionModel\) is fixed"),
        ("flux", {"diffusion_attention_config": {"roles": {}}}, "takes default and per_role; it has no roles"),
        ("flux", {"diffusion_attention_config": {"per_role": {"ltx2.audio": "native"}}}, "unknown role 'ltx2.audio'"),
        ("wan", {"diffusion_attention_config": {"per_role": {"joint": "native"}}}, "no layer of the role joint"),
        (
            "flux",
            {"diffusion_attention_config": {"default": {"backend": "native", "skip_softmax": 1}}},
            "an object with `backend` alone",
        ),
    ],
)
def test_what_cannot_be_chosen(
    kind: str, options: dict[str, Any], told: str, tiny_pipeline: Callable[[str], Any]
) -> None:
    with pytest.raises(ValueError, match=told):
        choose(tiny_pipeline(kind), **options)


def test_the_names_of_vllm_omni_are_kernels_of_diffusers() -> None:
    from app.engines.diffusion.attention import _PEER_NAMES

    assert {AttentionBackendName(name) for name in _PEER_NAMES.values()}
