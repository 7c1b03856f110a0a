"""--auxiliary-text-encoder: a text encoder that a pipeline needs and is published without (HiDream's Llama)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers

from app.engines.diffusion.checkpoint import Checkpoint, init_parameters

_ENCODER = re.compile(r"text_encoder(_\d+)?")


def auxiliary_encoder(directory: str, cls: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, Any]:
    """The one text encoder that the class takes and the checkpoint lacks, with its tokenizer, by component name.

    Raises:
        ValueError: nothing is lacking, or there is no such directory.
    """
    takes = init_parameters(cls)
    lacking = [name for name in takes if _ENCODER.fullmatch(name) and name not in checkpoint.components]
    if len(lacking) != 1:
        reason = f"it lacks {', '.join(lacking)}" if lacking else "it has all its text encoders"
        raise ValueError(f"--auxiliary-text-encoder: {cls.__name__} takes none here: {reason}")
    if not Path(directory).expanduser().is_dir():
        raise ValueError(f"--auxiliary-text-encoder must be a directory of this machine; got {directory}")
    path = Path(directory).expanduser()
    encoder = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, local_files_only=True, output_hidden_states=True
    )
    parts = {lacking[0]: encoder.eval()}
    tokenizer = lacking[0].replace("text_encoder", "tokenizer")
    if tokenizer in takes and tokenizer not in checkpoint.components:
        parts[tokenizer] = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return parts
