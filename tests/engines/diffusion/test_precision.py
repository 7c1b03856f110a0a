from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from app.engines.diffusion.checkpoint import read_checkpoint
from app.engines.diffusion.precision import choose_dtype, default_of, name_of
from tests import tiny_diffusion

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MIXED = {"vae": torch.float32, "default": torch.bfloat16}


@pytest.mark.parametrize(
    ("stored", "on_gpu"),
    [(torch.float32, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16)],
)
def test_auto_follows_the_device_and_the_denoiser(stored: torch.dtype, on_gpu: torch.dtype, tmp_path: Path) -> None:
    tiny_diffusion.stable_diffusion().to(stored).save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)

    assert choose_dtype("auto", {}, checkpoint, CPU) is torch.float32
    assert choose_dtype("auto", {}, checkpoint, GPU) is on_gpu


@pytest.mark.parametrize(
    ("named", "arguments", "chosen"),
    [
        ("float16", {}, torch.float16),
        ("auto", {"dtype": torch.float16}, torch.float16),
        ("auto", {"torch_dtype": MIXED}, MIXED),
        ("float16", {"dtype": torch.float16, "torch_dtype": torch.float16}, torch.float16),
    ],
)
def test_what_is_named_holds(
    named: str, arguments: dict[str, Any], chosen: Any, tiny_pipelines: Callable[[str], Path]
) -> None:
    arguments = {**arguments, "variant": "fp16"}

    assert choose_dtype(named, arguments, read_checkpoint(tiny_pipelines("sd")), CPU) == chosen
    assert arguments == {"variant": "fp16"}


def test_names_and_defaults() -> None:
    assert (name_of(torch.bfloat16), name_of(MIXED)) == ("bfloat16", "float32 (vae), bfloat16 (default)")
    assert (default_of(torch.float16), default_of(MIXED), default_of({})) == (
        torch.float16,
        torch.bfloat16,
        torch.float32,
    )
