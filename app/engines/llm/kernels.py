"""Fused kernels for a CPU: vLLM's CPU build has them compiled in, but its table of kernels offers them for GPUs only.

Without them RMSNorm is eight eager operations of torch. Measured on two cores with a tiny model: a sixth of a step of
one sequence, a tenth of a step of 64, a quarter of a prefill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm import ir
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PROVIDER = "omni_cpu"
_KERNELS = ("rms_norm", "fused_add_rms_norm")
_LANES = 32
"""The kernels work on whole vectors; no type of theirs has more elements in one."""


def install(config: VllmConfig) -> None:
    """Prefer the kernels in this process and those forked from it; what they cannot do, and what the user has chosen
    (`--ir-op-priority`), stays as it is."""
    current_platform.import_kernels()
    if not all(hasattr(torch.ops._C, name) for name in _KERNELS):
        return
    if PROVIDER not in ir.ops.rms_norm.impls:
        _register()
    for name in _KERNELS:
        priority = getattr(config.kernel_config.ir_op_priority, name)
        if priority == ["native"]:
            priority.insert(0, PROVIDER)


def _register() -> None:
    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_norm_supported)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_add_supported, inplace=True)(_fused_add_rms_norm)


def _norm_supported(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype and x.shape[-1] % _LANES == 0


def _add_supported(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return (
        _norm_supported(x, weight, epsilon, variance_size)
        and x_residual.dtype == x.dtype
        and x.is_contiguous()
        and x_residual.is_contiguous()
    )


def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    x = x.contiguous()  # the kernel takes no strides
    normal = torch.empty_like(x)
    torch.ops._C.rms_norm.default(normal, x, weight, epsilon)  # without the search for an overload: 2 us less
    return normal


def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.ops._C.fused_add_rms_norm.default(x, x_residual, weight, epsilon)
    return x, x_residual
