"""What kind of model lies at a path, by its own files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.settings.pipelines import Found, by_class_name, by_config

_SINGLE_FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
_GGUF = ".gguf"


class Hints(msgspec.Struct, frozen=True):
    """What was said about a model beside its name: all that is known of a file, and of a hub id without the hub.

    `class_name` is that of --model-class-name; `config`, from --diffusers-load-kwargs, is the directory that has what a
    single file lacks. `revision` and `cache`: which one of a hub model, and where it is kept.
    """

    class_name: str = ""
    config: str = ""
    revision: str = ""
    cache: str = ""


def inspect(path: Path, hints: Hints = Hints()) -> Found:  # noqa: B008 - frozen
    """What the model at `path` is; its pipeline may be one that cannot run.

    Raises:
        ValueError: there is no model, or none that any pipeline serves.
    """
    if not path.exists():
        raise ValueError(f"there is no model at {path}: the directory does not exist")
    found = _inspect_file(path, hints) if path.is_file() else _inspect_directory(path)
    if hints.class_name and found.class_name is not None:
        return by_class_name(hints.class_name)
    return found


def _inspect_directory(path: Path) -> Found:
    for name in ("model_index.json", "modular_model_index.json"):
        if (index := read_json(path / name)) is not None:
            return _of_index(path, index)
    config = read_json(path / "config.json")
    if config is None:
        raise ValueError(f"{path} holds no model: it has neither a config.json nor a model_index.json")
    if not (config.get("architectures") or config.get("model_type")):
        raise ValueError(f"{path / 'config.json'} names neither architectures nor a model_type")
    return by_config(config)


def _of_index(path: Path, index: Mapping[str, Any]) -> Found:
    name = index.get("_class_name")
    if isinstance(name, list) and name:  # a class that comes with the model: its module, its name
        name = name[-1]
    if not isinstance(name, str):
        raise ValueError(f"{path} is a diffusers model whose index names no _class_name")
    return by_class_name(name)


def _inspect_file(path: Path, hints: Hints) -> Found:
    suffix = path.suffix.lower()
    if suffix == _GGUF and not (hints.class_name or hints.config):
        raise ValueError(
            f"{path} is a GGUF file. A language model is served from the directory of the original model; a diffusion "
            'model needs its directory too, for all but these weights: --diffusers-load-kwargs \'{"config": "DIR"}\''
        )
    if suffix not in (*_SINGLE_FILES, _GGUF):
        raise ValueError(f"{path} is a file; a model is a directory, a hub id, or one file of weights")
    config = Path(hints.config).expanduser()
    return _inspect_directory(config) if hints.config and config.is_dir() else by_class_name("")


def model_type(directory: Path) -> str:
    """What the config.json of a model calls its type, "" for nothing.

    Raises:
        ValueError: there is none, or it is broken.
    """
    config = read_json(directory / "config.json")
    if config is None:
        raise ValueError(f"{directory} holds no model: there is no config.json in it")
    return str(config.get("model_type") or "")


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
