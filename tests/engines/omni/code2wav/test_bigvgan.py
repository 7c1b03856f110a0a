"""Spectra become sound in one call or in parts, alone or together: it is the same sound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavBigVGANModel

from app.engines.omni.code2wav import bigvgan
from app.engines.omni.code2wav.bigvgan import BigVgan, Spectrum


@pytest.fixture(scope="module")
def model() -> Qwen2_5OmniToken2WavBigVGANModel:
    """With the kernels and rates of the published one, so that it looks as far, but few channels."""
    torch.manual_seed(0)
    made = Qwen2_5OmniToken2WavBigVGANModel._from_config(Qwen2_5OmniBigVGANConfig(upsample_initial_channel=64)).eval()
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, torch.nn.Conv1d):
                module.weight.normal_(std=(module.in_channels * module.kernel_size[0]) ** -0.5)
            elif isinstance(module, torch.nn.ConvTranspose1d):
                module.weight.normal_(std=(module.in_channels * 2) ** -0.5)
        made.conv_post.weight.mul_(0.05)
    return made


@torch.inference_mode()
def test_in_parts_alone_and_together(model: Qwen2_5OmniToken2WavBigVGANModel, monkeypatch: pytest.MonkeyPatch) -> None:
    spectra = [torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) for frames in (130, 45, 1)]
    expected = [model(spectrum.T[None]).reshape(-1).numpy() for spectrum in spectra]
    vocoder = BigVgan(model)
    assert (vocoder.reach, vocoder.hop) == (37, 240)
    monkeypatch.setattr(bigvgan, "_LONGEST", 40)
    steps: list[None] = []
    whole = [Spectrum(spectrum, 0, 0) for spectrum in (*spectra, spectra[1])]
    middle = Spectrum(spectra[0][10:100], 40, 38)  # frames 50 to 62
    *sounds, again, part = vocoder.sounds([*whole, middle], lambda: steps.append(None))
    for sound, wanted in zip(sounds, expected, strict=True):
        np.testing.assert_allclose(sound, wanted, atol=1e-4)
        assert np.abs(wanted).max() > 0.01
    np.testing.assert_array_equal(again, sounds[1])
    np.testing.assert_allclose(part, expected[0][50 * 240 : 62 * 240], atol=1e-4)
    assert len(steps) > 20
