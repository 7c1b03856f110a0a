"""The benchmark's model: the tests' tiny random Qwen3, changed so that every token it makes is visible text.

Its tokenizer has one token a byte, and random weights choose bytes that are half of a character, or special tokens:
both decode to nothing at first, and a server sends no chunk for nothing. Then chunks could not be counted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def build(target: Path) -> Path:
    """Write the model to `target`, whatever is there; returns it."""
    from tests.tiny import build_tiny_qwen3

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    build_tiny_qwen3(target)
    _make_tokens_visible(target / "tokenizer.json")
    _silence_special_tokens(target)
    return target


def _make_tokens_visible(path: Path) -> None:
    """Bytes beyond ASCII become two-letter tokens, control characters too."""
    tokenizer: dict[str, Any] = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        token if token.isascii() or token in "Ġ" else f"{chr(97 + rank // 26)}{chr(97 + rank % 26)}": rank
        for token, rank in vocabulary.items()
    }
    path.write_text(json.dumps(tokenizer))


def _silence_special_tokens(target: Path) -> None:
    """Zero rows of the output layer: their logits are 0, and among 256 random ones the best is above that."""
    from safetensors.torch import load_file, save_file

    weights = load_file(target / "model.safetensors")
    special = [entry["id"] for entry in json.loads((target / "tokenizer.json").read_text())["added_tokens"]]
    weights["lm_head.weight"][special] = 0
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
