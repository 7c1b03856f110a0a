"""A policy of the type pi0 with a few thousand random weights, made offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("pick", "up", "the", "red", "block", "and", "put", "it", "down")
SIDE = 28
STATISTICS = {
    "state_mean": [0.5, -0.5, 0.25, 1.0],
    "state_std": [1.0, 2.0, 0.5, 0.1],
    "actions_mean": [0.1, 0.2, 0.3],
    "actions_std": [2.0, 1.0, 0.5],
}
"""Of a robot whose state has four numbers, and each of its actions three."""


def build(directory: Path, *, normalized: bool = True) -> Path:
    """Actions are 6 at a time; the model has places for 8 numbers of state and of action."""
    tokenizer = _tokenizer()
    torch.manual_seed(0)
    model = transformers.PI0ForConditionalGeneration(_config(len(tokenizer))).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if normalized:
        (directory / "processor_config.json").write_text(json.dumps({"processor_class": "PI0Processor"} | STATISTICS))
    return directory


def _config(vocabulary: int) -> Any:
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
        "vision_use_head": False,
    }
    text = {"model_type": "gemma", "hidden_size": 32, "intermediate_size": 64, "vocab_size": vocabulary, **layers}
    return transformers.PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": text | {"max_position_embeddings": 64},
            "vision_config": vision,
            "projection_dim": 32,
            "image_token_id": vocabulary - 1,
        },
        dit_config={"model_type": "gemma", "hidden_size": 16, "intermediate_size": 32, "vocab_size": 32, **layers},
        chunk_size=6,
        max_state_dim=8,
        max_action_dim=8,
        num_inference_steps=4,
    )


def _tokenizer() -> Any:
    vocabulary = {word: place for place, word in enumerate(("<pad>", "<bos>", "<eos>", "<unk>", "\n", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["\n", "<image>"],
    )
