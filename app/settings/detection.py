"""Which pipeline serves a model, decided without importing an engine."""

from __future__ import annotations

import re
from pathlib import Path

from app.settings.hub import LookUp
from app.settings.inspection import inspect
from app.settings.pipelines import PIPELINES, Found
from app.settings.problems import near

BUILT_IN = ("demo", "stub")
"""Models that are names of pipelines, not of files."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(model: str) -> bool:
    """Whether `model` names a hub repository, as opposed to a file, a directory or a built-in model."""
    return model not in BUILT_IN and not _is_path(model)


def detect(model: str, pipeline: str | None, look_up: LookUp | None = None) -> str:
    """The name of the pipeline that serves `model`; `pipeline` is the deploy file's choice and is only checked.

    `look_up` is asked about a hub id. Without it, or where it does not know, that is taken for a language model;
    prepare() looks again when the files are there.

    Raises:
        ValueError: the model does not exist, or no pipeline can serve it; says which and what to do.
    """
    if pipeline is not None and pipeline not in PIPELINES:
        raise ValueError(
            f"pipeline: unknown pipeline {pipeline}{near(pipeline, PIPELINES)}; known: {', '.join(PIPELINES)}"
        )
    found = _found(model, pipeline, look_up)
    if found.pipeline.part:
        raise ValueError(f"{model} is {found.what}: {found.pipeline.refusal}")
    return found.pipeline.name


def _found(model: str, pipeline: str | None, look_up: LookUp | None) -> Found:
    if model in BUILT_IN or pipeline in BUILT_IN:
        if pipeline not in (None, model):
            raise ValueError(f"pipeline: the pipeline {pipeline} does not serve the model {model}")
        return Found("built in", PIPELINES[model])
    if not _is_path(model):
        if not _HUB_ID.fullmatch(model):
            raise ValueError(f"{model!r} is neither a directory here nor a hub id (owner/name)")
        looked_up = look_up(model) if look_up and not pipeline else None
        return looked_up or _chosen(pipeline or "llm")
    if pipeline:
        return _chosen(pipeline)
    return inspect(Path(model).expanduser())


def _chosen(pipeline: str) -> Found:
    return Found(f"to be served by {pipeline}", PIPELINES[pipeline])


def _is_path(model: str) -> bool:
    return (
        model.startswith(("/", "./", "../", "~"))
        or model in (".", "..")
        or Path(model).exists()
        or model.count("/") > 1
    )
