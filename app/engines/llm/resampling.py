"""Recordings of another rate than the model's: where torchaudio is not there, soxr does what vLLM has it do."""

from __future__ import annotations

import importlib.util

from vllm.multimodal import audio


def without_torchaudio() -> None:
    """vLLM resamples with torchaudio unless a model says otherwise; its CPU build comes without, and fails on chats.

    vLLM has a function of its own for soxr, which its audio resampler takes from here on for torchaudio's.
    """
    if importlib.util.find_spec("torchaudio") is None:
        audio.resample_audio_torchaudio = audio.resample_audio_soxr
