"""The trainer, for a few steps: a run that was stopped ends where an undisturbed one does."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline

from app.demo.train_t2i import Plan, StoppedError, Trainer

_PLAN = Plan(autoencoder_steps=2, autoencoder_batch=2, denoiser_steps=3, denoiser_batch=2)


def test_a_stopped_run_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    whole = Trainer(_PLAN, tmp_path / "whole", over=lambda: False)
    whole.train()

    asked = count(1)
    first = Trainer(_PLAN, tmp_path / "parts", over=lambda: next(asked) > 4)  # before the second step of the denoiser
    with pytest.raises(StoppedError):
        first.train()
    assert (first.autoencoding.step, first.denoising.step) == (2, 2)
    second = Trainer(_PLAN, tmp_path / "parts", over=lambda: False)
    second.resume()
    second.train()

    assert second.denoising.step == 3
    for mine, theirs in zip(second.denoising.averaged.parameters(), whole.denoising.averaged.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert second.cpu_s > first.cpu_s


def test_what_is_written_is_a_pipeline_that_draws(tmp_path: Path) -> None:
    Trainer(_PLAN, tmp_path, over=lambda: False).train()
    pipeline = StableDiffusionPipeline.from_pretrained(tmp_path / "pipeline", dtype=torch.float32)
    assert pipeline("a red circle", num_inference_steps=2, output_type="np").images.shape == (1, 64, 64, 3)
    assert "3 of 3 steps: 6 pictures" in (tmp_path / "pipeline" / "README.md").read_text()
