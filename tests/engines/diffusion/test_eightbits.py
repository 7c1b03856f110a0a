"""Which kernel runs in which step and layer. The kernel of 8 bits needs CUDA: another one stands in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from app.engines.diffusion.eightbits import EightBits, eight_bits
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.run import Runner
from tests.engines.diffusion.asking import Pipelines, task
from tests.engines.diffusion.drawing import given
from tests.engines.diffusion.running import call_for, draw, offer_of

OTHER = AttentionBackendName._NATIVE_MATH


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of a kernel, in order, whether it was the one that stands for 8 bits."""
    calls: list[bool] = []
    for backend, kernel in list(_AttentionBackendRegistry._backends.items()):

        def spy(*args: Any, _other: bool = backend == OTHER, _kernel: Any = kernel, **kwargs: Any) -> Any:
            calls.append(_other)
            return _kernel(*args, **kwargs)

        monkeypatch.setitem(_AttentionBackendRegistry._backends, backend, spy)
    return calls


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        ({}, [[True] * 4] * 3),
        ({"diffusion_kv_cache_skip_layers": "0,2-3"}, [[False, True, False, False]] * 3),
        ({"diffusion_kv_cache_skip_steps": "0-1"}, [[False] * 4, [False] * 4, [True] * 4]),
    ],
)
def test_steps_and_layers_are_left_out(
    skipped: dict[str, str], expected: list[list[bool]], tiny_pipeline: Pipelines, called: list[bool]
) -> None:
    pipe = tiny_pipeline("flux")
    offer = offer_of(pipe)
    kernels = EightBits(pipe, given(diffusion_kv_cache_dtype="fp8", **skipped), OTHER)
    runner = Runner(pipe, offer, Adapters(pipe, given()), eight_bits=kernels)
    for _ in range(2):
        called.clear()
        draw(runner, call_for(offer, task()))
        assert [called[i : i + 4] for i in range(0, len(called), 4)] == expected


def test_what_cannot_be_had(tiny_pipeline: Pipelines) -> None:
    assert eight_bits(tiny_pipeline("flux"), given(diffusion_kv_cache_dtype="auto"), torch.device("cpu")) is None
    with pytest.raises(ValueError, match="SageAttention's kernel on CUDA, which does not run here"):
        eight_bits(tiny_pipeline("flux"), given(diffusion_kv_cache_dtype="fp8"), torch.device("cpu"))
    with pytest.raises(ValueError, match="no layer whose kernel can be chosen"):
        EightBits(tiny_pipeline("sd"), given(diffusion_kv_cache_dtype="fp8"), OTHER)
