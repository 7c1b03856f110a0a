from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.capabilities import Summary, summarize


@pytest.mark.parametrize(
    ("config", "summary"),
    [
        (
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960},
            Summary("Qwen3ForCausalLM", ["text"], 40960),
        ),
        (
            {"architectures": ["X"], "vision_config": {}, "text_config": {"max_position_embeddings": 100}},
            Summary("X", ["text", "image"], 100),
        ),
        (
            {
                "model_type": "qwen3_omni_moe",
                "thinker_config": {"audio_config": {}, "vision_config": {}, "text_config": {"n_positions": 7}},
            },
            Summary("qwen3_omni_moe", ["text", "image", "audio"], 7),
        ),
        ({"model_type": "x"}, Summary("x", ["text"])),
    ],
)
def test_summaries(config: dict[str, Any], summary: Summary, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert summarize(tmp_path) == summary


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    assert summarize(tmp_path) is None
