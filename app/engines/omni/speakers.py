"""The voices of an omni checkpoint, the one that speaks unasked before the others: what its talker and vocoder have."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

SAMPLE_RATE = 24_000
"""Of the sound of both families, in Hz."""
_SPEAKERS = "spk_dict.pt"
_QWEN2_5_DEFAULT = "Chelsie"
_QWEN3_DEFAULT = "ethan"


def qwen2_5_speakers(directory: Path) -> dict[str, dict[str, Any]]:
    """By name: `bos_token`, the thinker's token that tells it; `cond` (1, n) and `ref_mel` (1, frames, mels).

    Raises:
        ValueError: the file holds no speakers.
        OSError: it is missing or cannot be read.
    """
    file = directory / _SPEAKERS
    try:
        found: dict[str, dict[str, Any]] = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not found or not all({"bos_token", "cond", "ref_mel"} <= speaker.keys() for speaker in found.values()):
        raise ValueError(f"{file} must hold speakers by name, each with bos_token, cond and ref_mel")
    return _first(found, _QWEN2_5_DEFAULT)


def qwen3_speakers(directory: Path, talker: Any) -> dict[str, int]:
    """By name: the talker's token that tells it. `talker` is the talker's configuration.

    Raises:
        ValueError: it has none.
    """
    if not talker.speaker_id:
        raise ValueError(f"{directory} has no speaker: its talker_config has no speaker_id")
    return _first(talker.speaker_id, _QWEN3_DEFAULT)


def _first(speakers: dict[str, Any], default: str) -> dict[str, Any]:
    first = default if default in speakers else next(iter(speakers))
    return {name: speakers[name] for name in (first, *speakers)}
