"""Which families of talkers there are, and which one a model's talker belongs to."""

from __future__ import annotations

import json
from pathlib import Path

from app.engines.omni.talker.family import TalkerFamily


def open_family(model: str) -> TalkerFamily:
    """The talker of the checkpoint in the directory `model`.

    Raises:
        ValueError: it is of no known family, or lacks something.
        OSError: a file of it is missing or cannot be read.
    """
    model_type = json.loads((Path(model) / "config.json").read_bytes()).get("model_type")
    match model_type:
        case "qwen2_5_omni":
            from app.engines.omni.talker.qwen2_5 import Qwen2_5Talker

            return Qwen2_5Talker(model)
        case "qwen3_omni_moe":
            from app.engines.omni.talker.qwen3 import Qwen3Talker

            return Qwen3Talker(model)
        case _:
            raise ValueError(f"{model} is of the type {model_type!r}, of which no talker is known")
