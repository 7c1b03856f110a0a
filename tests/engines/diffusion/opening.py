"""How the tests of loading open a pipeline, and what it draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.engines.diffusion.loading import load
from app.engines.diffusion.options import DiffusionOptions

Build = Callable[[str], Path]
"""What the fixture tiny_pipelines is."""

PROMPT = "a red circle on a blue background"


def loaded(model: Path, say: Callable[[str], None] = lambda line: None, **options: Any) -> Any:
    return load(DiffusionOptions(device="cpu", **options), str(model), say)


def draw(pipe: Any) -> np.ndarray:
    """Two steps at 64x64, seed 0, in what the pipeline makes."""
    arguments: dict[str, Any] = {"num_inference_steps": 2, "generator": torch.Generator().manual_seed(0)}
    match type(pipe).__name__:
        case "StableAudioPipeline":
            arguments["audio_end_in_s"] = 0.2
        case "WanPipeline":
            arguments |= {"width": 32, "height": 32, "num_frames": 5, "output_type": "np"}
        case "Flux2KleinPipeline":
            arguments |= {"width": 64, "height": 64, "text_encoder_out_layers": (1, 2, 3), "output_type": "np"}
        case _:
            arguments |= {"width": 64, "height": 64, "output_type": "np"}
    return np.asarray(pipe(prompt=PROMPT, **arguments)[0])
