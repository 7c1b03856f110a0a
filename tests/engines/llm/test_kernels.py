"""The fused kernels give the numbers of vLLM's own operations, whatever the layout, and yield to the user's choice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from vllm import ir
from vllm.config import VllmConfig
from vllm.config.kernel import IrOpPriorityConfig

from app.engines.llm import kernels

EPSILON = 1e-6
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def install(**chosen: list[str]) -> IrOpPriorityConfig:
    priority = IrOpPriorityConfig(**{"rms_norm": ["native"], "fused_add_rms_norm": ["native"], **chosen})
    kernels.install(cast(VllmConfig, SimpleNamespace(kernel_config=SimpleNamespace(ir_op_priority=priority))))
    return priority


def implementation(operation: Any, *args: Any) -> Any:
    """What vLLM would call, and that it is the fused kernel."""
    with operation.set_priority([kernels.PROVIDER, "native"]):
        chosen = operation.dispatch(*args)
    assert chosen.provider == kernels.PROVIDER
    return chosen.impl_fn


@pytest.fixture(autouse=True)
def installed() -> None:
    install()


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one.float(), other.float(), atol=0.05, rtol=0.02))


def test_it_is_preferred_and_the_users_choice_is_kept() -> None:
    assert install().rms_norm == [kernels.PROVIDER, "native"]
    assert install(rms_norm=["vllm_c", "native"]).rms_norm == ["vllm_c", "native"]
    assert install(rms_norm=["vllm_c", "native"]).fused_add_rms_norm == [kernels.PROVIDER, "native"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_is_what_vllm_computes(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 128).to(dtype), torch.randn(128).to(dtype)
    fused = implementation(ir.ops.rms_norm, x, weight, EPSILON)(x, weight, EPSILON)
    assert fused.dtype == dtype
    assert close(fused, ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON))


def test_norm_of_a_view() -> None:
    """Queries and keys are cut out of one matrix: the kernel itself would read across the cut."""
    x, weight = torch.randn(7, 256)[:, :128].view(7, 4, 32), torch.randn(32)
    fused = implementation(ir.ops.rms_norm, x, weight, EPSILON)(x, weight, EPSILON)
    assert fused.shape == x.shape
    assert close(fused, ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_a_sum_is_what_vllm_computes(dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((7, 64), (7, 64), (64,)))
    expected = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    fused = implementation(ir.ops.fused_add_rms_norm, x, residual, weight, EPSILON)
    outputs = fused(x.clone(), residual.clone(), weight, EPSILON)
    assert all(close(one, other) for one, other in zip(outputs, expected, strict=True))


def test_what_they_cannot_do_is_left_to_vllm() -> None:
    x, weight = torch.randn(7, 64), torch.randn(64)
    refused: list[tuple[Any, tuple[Any, ...]]] = [
        (ir.ops.rms_norm, (x, None, EPSILON)),
        (ir.ops.rms_norm, (x, weight, EPSILON, 32)),
        (ir.ops.rms_norm, (x.bfloat16(), weight, EPSILON)),
        (ir.ops.rms_norm, (torch.randn(7, 20), torch.randn(20), EPSILON)),
        (ir.ops.fused_add_rms_norm, (torch.randn(7, 128)[:, :64], x, weight, EPSILON)),
        (ir.ops.fused_add_rms_norm, (x, x.bfloat16(), weight, EPSILON)),
    ]
    for operation, args in refused:
        with operation.set_priority([kernels.PROVIDER, "native"]):
            assert operation.dispatch(*args).provider == "native"
