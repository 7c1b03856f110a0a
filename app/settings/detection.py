"""Which pipeline serves a model, decided without importing an engine and without the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.settings.pipelines import PIPELINES
from app.settings.problems import near

BUILT_IN = ("demo", "stub")
"""Models that are names of pipelines, not of files."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(model: str) -> bool:
    """Whether `model` names a hub repository, as opposed to a file, a directory or a built-in model."""
    return model not in BUILT_IN and not _is_path(model)


def detect(model: str, pipeline: str | None) -> str:
    """The name of the pipeline that serves `model`; `pipeline` is the deploy file's choice and is only checked.

    A hub id is taken for a language model here; prepare() looks again when the files are there.

    Raises:
        ValueError: the model does not exist, or no pipeline can serve it; says which and what to do.
    """
    if pipeline is not None and pipeline not in PIPELINES:
        raise ValueError(
            f"pipeline: unknown pipeline {pipeline}{near(pipeline, PIPELINES)}; known: {', '.join(PIPELINES)}"
        )
    if model in BUILT_IN or pipeline in BUILT_IN:
        if pipeline not in (None, model):
            raise ValueError(f"pipeline: the pipeline {pipeline} does not serve the model {model}")
        return model
    if not _is_path(model):
        if not _HUB_ID.fullmatch(model):
            raise ValueError(f"{model!r} is neither a directory here nor a hub id (owner/name)")
        return pipeline or "llm"
    return pipeline or _detect_directory(Path(model).expanduser())


def _is_path(model: str) -> bool:
    return (
        model.startswith(("/", "./", "../", "~"))
        or model in (".", "..")
        or Path(model).exists()
        or model.count("/") > 1
    )


def _detect_directory(path: Path) -> str:
    if not path.exists():
        raise ValueError(f"there is no model at {path}: the directory does not exist")
    if path.is_file():
        raise ValueError(f"{path} is a file; this version serves directories with a config.json, and hub ids")
    index = read_json(path / "model_index.json") or read_json(path / "modular_model_index.json")
    if index is not None:
        name = index.get("_class_name", "an unnamed pipeline")
        raise ValueError(f"{path} is a diffusion model ({name}); this version serves language models only")
    config = read_json(path / "config.json")
    if config is None:
        raise ValueError(f"{path} holds no model: it has no config.json")
    if not (config.get("architectures") or config.get("model_type")):
        raise ValueError(f"{path / 'config.json'} names neither architectures nor a model_type")
    return "llm"


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
