"""The engine and a stock model of transformers, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engines.speech.asking import Asked

Voices = Callable[[str], Path]


def stock(call: Callable[[], torch.Tensor], seed: int = 7) -> np.ndarray[Any, Any]:
    """The waveform that a call of the model makes of this seed, as 16 bits."""
    torch.manual_seed(seed)
    with torch.no_grad():
        sound = call()
    return np.rint(np.clip(sound.reshape(-1).float().numpy(), -1, 1) * 32767).astype("<i2")


def assert_heard(asked: Asked, sounds: Iterable[np.ndarray[Any, Any]]) -> None:
    """The answer is these sounds, one after the other, and not silent."""
    expected = np.concatenate(list(sounds))
    np.testing.assert_array_equal(asked.samples, expected)
    assert np.abs(expected).max() > 100
