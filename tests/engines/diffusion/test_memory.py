from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from app.engines.diffusion import memory
from app.engines.diffusion.memory import describe, free_memory, judge, memory_need
from tests import tiny_diffusion

GIB = 1 << 30
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
NEED = {"transformer": 20 * GIB, "text_encoder": 10 * GIB, "vae": GIB // 5}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_need_is_what_the_components_hold(dtype: str, tiny_pipelines: Callable[[str], Path]) -> None:
    directory = tiny_pipelines("flux")
    pipe = tiny_diffusion.open_pipeline(directory, dtype=getattr(torch, dtype))
    parts = {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}

    need = memory_need(directory, dtype)

    assert need.keys() == parts.keys()
    for name, part in parts.items():
        # Tied embeddings are stored once and held once; what is not trained is not stored.
        held = sum({p.data_ptr(): p.nbytes for p in part.parameters()}.values())
        assert need[name] == pytest.approx(held, rel=0.01)


def test_it_is_told_largest_first() -> None:
    assert describe(NEED) == "30.2 GiB (transformer 20.0, text_encoder 10.0, vae 0.2)"


def test_free_host_memory_is_within_the_machine() -> None:
    total = memory._meminfo("MemTotal")

    assert 0 < free_memory(CPU) <= total


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """GiB that are free, by kind of device."""
    amounts = {"cpu": 100.0, "cuda": 100.0}
    monkeypatch.setattr(memory, "free_memory", lambda device: int(amounts[device.type] * GIB))
    return amounts


@pytest.mark.parametrize("offloading", ["", "module", "layer"])
def test_what_fits_is_not_mentioned(offloading: str, free: dict[str, float]) -> None:
    assert judge(NEED, GPU, offloading) == []
    assert judge(NEED, CPU, "") == []


def test_what_hardly_fits_is_a_warning(free: dict[str, float]) -> None:
    free["cuda"] = 28

    assert judge(NEED, GPU, "") == ["the weights need 30.2 GiB, and cuda:0 has 28.0 GiB free"]


@pytest.mark.parametrize(
    ("device", "offloading", "amounts", "message"),
    [
        (GPU, "", {"cuda": 22}, r"the weights need 30.2 GiB, and cuda:0 has 22.0 GiB free: .*--enable-cpu-offload"),
        (GPU, "module", {"cuda": 12}, r"the largest part of the weights needs 20.0 GiB.*--enable-layerwise-offload"),
        (GPU, "module", {"cpu": 12}, r"this machine has 12.0 GiB free.*--quantization int8"),
        (GPU, "layer", {"cpu": 12}, r"this machine has 12.0 GiB free"),
        (CPU, "", {"cpu": 12}, r"this machine has 12.0 GiB free"),
    ],
)
def test_what_cannot_fit_is_an_error_that_says_what_would(
    device: torch.device, offloading: str, amounts: dict[str, float], message: str, free: dict[str, float]
) -> None:
    free |= amounts

    with pytest.raises(ValueError, match=message):
        judge(NEED, device, offloading)


def test_single_layers_fit_anywhere(free: dict[str, float]) -> None:
    free["cuda"] = 1

    assert judge(NEED, GPU, "layer") == []
