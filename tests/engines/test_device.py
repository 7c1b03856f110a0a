"""Where torch computes, and how a full memory is recognised."""

from __future__ import annotations

import pytest
import torch

from app.engines.device import compute_device, is_out_of_memory, torch_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_device_is_the_named_one_else_the_machines_best() -> None:
    assert compute_device("cpu") == torch.device("cpu")
    assert compute_device("cuda:1") == torch.device("cuda", 1)
    expected = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    assert compute_device("") == expected


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_memory_that_is_short(error: Exception, full: bool) -> None:
    assert is_out_of_memory(error) is full


@pytest.mark.parametrize(
    ("named", "device", "small", "dtype"),
    [
        ("auto", CPU, False, torch.float32),
        ("auto", GPU, True, torch.float32),
        ("auto", GPU, False, "auto"),
        ("bfloat16", CPU, True, torch.bfloat16),
    ],
)
def test_the_number_type(named: str, device: torch.device, small: bool, dtype: torch.dtype | str) -> None:
    assert torch_dtype(named, device, small=small) == dtype
