"""A Qwen2.5-Omni of random weights, large enough that its computing matters and small enough for a CPU.

Writing and speaking take most of its time, sound the rest, as of the published models on the devices they are made for:
a step of either reads all weights for one token, or for one of each of many requests. Its thinker never stops to write,
nor its talker to speak: how long an answer is, who asks decides, on every side.
"""

from __future__ import annotations

from pathlib import Path

HIDDEN = 1024
_ROTARY = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
_SIZES = {
    "thinker_config": {
        "text_config": {
            "hidden_size": HIDDEN,
            "intermediate_size": 2816,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "rope_parameters": _ROTARY,
            "initializer_range": 0.05,
        },
        "vision_config": {"out_hidden_size": HIDDEN},
        "audio_config": {"output_dim": HIDDEN},
    },
    "talker_config": {
        "embedding_size": HIDDEN,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_parameters": _ROTARY,
        "initializer_range": 0.05,
    },
}


def build(directory: Path) -> Path:
    """Write the checkpoint, in float32, into `directory`."""
    import torch

    from tests import tiny_omni

    torch.manual_seed(0)
    directory.mkdir(parents=True, exist_ok=True)
    tiny_omni.qwen2_5_omni(directory, sizes=_SIZES, endless=True)
    return directory
