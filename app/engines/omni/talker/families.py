"""Which families of talkers there are, and which one a model's talker belongs to."""

from __future__ import annotations

from pathlib import Path

from app.engines.omni.talker.family import TalkerFamily
from app.settings.inspection import model_type


def open_family(model: str) -> TalkerFamily:
    """The talker of the checkpoint in the directory `model`.

    Raises:
        ValueError: it is of no known family, or lacks something.
        OSError: a file of it is missing or cannot be read.
    """
    match model_type(Path(model)):
        case "qwen2_5_omni":
            from app.engines.omni.talker.qwen2_5 import Qwen2_5Talker

            return Qwen2_5Talker(model)
        case "qwen3_omni_moe":
            from app.engines.omni.talker.qwen3 import Qwen3Talker

            return Qwen3Talker(model)
        case other:
            raise ValueError(f"{model} is of the type {other!r}, of which no talker is known")
