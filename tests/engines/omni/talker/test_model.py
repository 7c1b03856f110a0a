"""What a talker's model reads of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.config import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from app.engines.omni.talker.model import Talker


def test_files_that_are_the_thinkers_alone_are_not_read(tmp_path: Path) -> None:
    """Tens of gigabytes, otherwise. One that holds the thinker's embeddings is read: the talker needs rows of them."""
    names = [
        ["thinker.model.layers.0.w"],
        ["thinker.model.embed_tokens.weight", "thinker.w"],
        ["talker.w", "code2wav.w"],
    ]
    for number, part in enumerate(names):
        save_file({name: torch.zeros(1) for name in part}, tmp_path / f"model-{number}.safetensors")

    class Model:
        is_unused_checkpoint_weight = Talker.is_unused_checkpoint_weight

    class Config:
        model, revision = str(tmp_path), None

    model: Any = Model()
    config: Any = Config()
    loader = DefaultModelLoader(LoadConfig(use_tqdm_on_load=False))
    read = {name for name, _ in loader.get_all_weights(config, model)}
    assert read == {*names[1], *names[2]}
