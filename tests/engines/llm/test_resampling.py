"""vLLM's audio resampler works where torchaudio is not installed."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from vllm.multimodal.audio import AudioResampler
from vllm.multimodal.parse import MultiModalDataParser

from app.engines.llm.resampling import without_torchaudio


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100, 48_000])
def test_a_recording_of_another_rate_sounds_the_same(rate: int) -> None:
    without_torchaudio()
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    heard = AudioResampler(target_sr=16_000).resample(tone, orig_sr=rate)
    assert heard.dtype == np.float32
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(heard[1000:15_000], expected[1000:15_000], atol=0.01)


def test_what_we_lean_on() -> None:
    """vLLM's parser asks for torchaudio unless a model says otherwise; if it asks for soxr one day, ours can go."""
    parameters = inspect.signature(MultiModalDataParser).parameters
    assert parameters["audio_resample_method"].default == "torchaudio"
