"""What a model can do, as far as its config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.settings.inspection import read_json

_MEDIA = {"image": ("vision_config", "vision_tower_config"), "audio": ("audio_config", "audio_encoder_config")}
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


class Summary(msgspec.Struct, frozen=True):
    """`architecture`: the class that the model names. `context`: its longest context in tokens, 0 if it says none."""

    architecture: str
    inputs: list[str]
    context: int = 0


def summarize(directory: Path) -> Summary | None:
    """The summary of a model in a directory; None if it has no config.json.

    Raises:
        ValueError: the file cannot be read.
    """
    config = read_json(directory / "config.json")
    if config is None:
        return None
    parts = _parts(config)
    inputs = [kind for kind, keys in _MEDIA.items() if any(key in part for part in parts for key in keys)]
    lengths = [part[key] for part in parts for key in _CONTEXT if isinstance(part.get(key), int)]
    architectures = config.get("architectures") or [config.get("model_type", "unknown")]
    return Summary(str(architectures[0]), ["text", *inputs], lengths[0] if lengths else 0)


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, and those of the language model inside it."""
    parts = [config]
    for key in ("thinker_config", "text_config", "llm_config", "language_config"):
        parts += [part[key] for part in parts if isinstance(part.get(key), dict)]
    return parts
