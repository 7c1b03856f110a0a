"""One file of weights: a whole pipeline in the layout of its authors, or only its denoiser (safetensors or GGUF)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import GGUFQuantizationConfig
from safetensors import safe_open

from app.engines.diffusion.checkpoint import Checkpoint, init_parameters, read_checkpoint
from app.engines.diffusion.load_arguments import FLAG

_OF_WHOLE_PIPELINES = (
    "first_stage_model.",
    "vae.",
    "cond_stage_model.",
    "conditioner.",
    "text_encoders.",
)
"""Names of tensors begin so in files that also hold an autoencoder or a text encoder."""


def surroundings(file: Path, config: Any) -> Checkpoint:
    """The pipeline that the file belongs to, from the directory named as `config` in --diffusers-load-kwargs.

    Raises:
        ValueError: it is not named, or there is no pipeline.
    """
    if not isinstance(config, str):
        raise ValueError(
            f"{file} is one file of weights; the other parts of its pipeline are needed too: "
            f'{FLAG} \'{{"config": "DIRECTORY"}}\''
        )
    directory = Path(config).expanduser()
    if not directory.is_dir():
        raise ValueError(f"{FLAG}: config must be a directory of this machine with the pipeline's parts; got {config}")
    return read_checkpoint(directory)


def is_whole(file: Path) -> bool:
    """Whether the file holds more than a denoiser; old pickled checkpoints always do."""
    if file.suffix == ".gguf":
        return False
    if file.suffix != ".safetensors":
        return True
    with safe_open(file, "pt") as content:
        return any(name.startswith(_OF_WHOLE_PIPELINES) for name in content.keys())  # noqa: SIM118 - no mapping


def load_whole(file: Path, cls: Any, checkpoint: Checkpoint, arguments: dict[str, Any], dtype: torch.dtype) -> Any:
    """The whole pipeline from the file.

    Raises:
        ValueError: the class has no converter for such files, or an argument is for directories only.
    """
    if not hasattr(cls, "from_single_file"):
        raise ValueError(f"{cls.__name__} cannot be read from one file; give its directory")
    if useless := arguments.keys() - init_parameters(cls).keys() - {"disable_mmap"}:
        raise ValueError(f"{FLAG}: {', '.join(sorted(useless))} cannot be had with a model that is one file")
    return cls.from_single_file(
        str(file), config=str(checkpoint.directory), dtype=dtype, local_files_only=True, **arguments
    )


def load_denoiser(file: Path, name: str, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The component `name` from the file; from a GGUF file, it stays quantized and computes in `dtype`.

    Raises:
        ValueError: the component's class has no converter for such files.
    """
    cls = checkpoint.component_class(name)
    if not hasattr(cls, "from_single_file"):
        raise ValueError(f"{name} of {checkpoint.directory} ({cls and cls.__name__}) cannot be read from one file")
    quantized = {"quantization_config": GGUFQuantizationConfig(compute_dtype=dtype)} if file.suffix == ".gguf" else {}
    return cls.from_single_file(
        str(file), config=str(checkpoint.directory), subfolder=name, dtype=dtype, local_files_only=True, **quantized
    )


def denoiser_name(checkpoint: Checkpoint) -> str:
    """The component that a file without a text encoder is taken for.

    Raises:
        ValueError: the pipeline has none.
    """
    for name in ("transformer", "unet"):
        if name in checkpoint.components and checkpoint.component_class(name) is not None:
            return name
    raise ValueError(f"the pipeline in {checkpoint.directory} has no denoiser that a single file could be")
