"""What kind of model lies at a path, by its own files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.settings.pipelines import PIPELINES, Found, by_class_name, by_model_type

_SINGLE_FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def inspect(path: Path) -> Found:
    """What the model at `path` is; its pipeline may be one that cannot run yet.

    Raises:
        ValueError: there is no model, or none that any pipeline serves.
    """
    if not path.exists():
        raise ValueError(f"there is no model at {path}: the directory does not exist")
    if path.is_file():
        return _inspect_file(path)
    index = read_json(path / "model_index.json") or read_json(path / "modular_model_index.json")
    if index is not None:
        return _of_index(path, index)
    config = read_json(path / "config.json")
    if config is None:
        raise ValueError(f"{path} holds no model: it has neither a config.json nor a model_index.json")
    if not (config.get("architectures") or config.get("model_type")):
        raise ValueError(f"{path / 'config.json'} names neither architectures nor a model_type")
    return by_model_type(str(config.get("model_type", "")))


def _of_index(path: Path, index: Mapping[str, Any]) -> Found:
    name = index.get("_class_name")
    if not isinstance(name, str):
        raise ValueError(f"{path} is a diffusers model whose index names no _class_name")
    return by_class_name(name)


def _inspect_file(path: Path) -> Found:
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        raise ValueError(
            f"{path} is a GGUF file, which vLLM does not read by itself; give the directory of the original model"
        )
    if suffix not in _SINGLE_FILES:
        raise ValueError(f"{path} is a file; a model is a directory, a hub id, or one file of weights")
    return Found("a single file of weights, which only diffusion models can be", PIPELINES["diffusion"])


def read_json(path: Path) -> Mapping[str, Any] | None:
    """The object in a JSON file; None if there is no such file.

    Raises:
        ValueError: it is there and is no JSON object.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
