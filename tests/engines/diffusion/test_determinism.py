from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch as dispatch

from app.engines.diffusion.attention import attention_layers
from app.engines.diffusion.determinism import make_deterministic
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.tuning import tune
from tests.engines.diffusion.drawing import draw, given


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def test_the_kernel_is_told(tiny_pipeline: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the kernel is not here: what diffusers would call of it is."""
    told: list[dict[str, Any]] = []

    def flash(q: torch.Tensor, **more: Any) -> torch.Tensor:
        told.append(more)
        return q

    monkeypatch.setattr(dispatch, "flash_attn_func", flash)
    pipe = tiny_pipeline("flux")
    for layer in attention_layers(pipe.transformer):
        layer.processor._attention_backend = dispatch.AttentionBackendName.FLASH
    assert list(make_deterministic(denoisers(pipe), given(fa_deterministic=True))) == ["deterministic: flash"]
    draw(pipe, steps=1)
    assert told
    assert all(more["deterministic"] for more in told)
    assert torch.are_deterministic_algorithms_enabled()


def test_torch_s_own_flash_kernel_is_one(tiny_pipeline: Callable[[str], Any]) -> None:
    done = tune(tiny_pipeline("flux"), given(fa_deterministic=True, diffusion_attention_backend="_native_flash"))
    assert done[-1] == "deterministic: _native_flash"
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_kernels_stay_as_they_are(tiny_pipeline: Callable[[str], Any]) -> None:
    [done] = tune(tiny_pipeline("flux"), given(fa_deterministic=True))
    assert done == "--fa-deterministic has no effect: no layer is told to use a kernel of FlashAttention"
    assert not torch.are_deterministic_algorithms_enabled()
