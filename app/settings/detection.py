"""Which pipeline serves a model, decided without importing an engine."""

from __future__ import annotations

import re
from pathlib import Path

from app.settings.hub import LookUp
from app.settings.inspection import Hints, inspect
from app.settings.pipelines import CUSTOM, PIPELINES, Found, by_class_name
from app.settings.problems import near

BUILT_IN = ("demo", "stub")
"""Models that are names of pipelines, not of files."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(model: str) -> bool:
    """Whether `model` names a hub repository, as opposed to a file, a directory or a built-in model."""
    return model not in BUILT_IN and not _is_path(model)


def detect(
    model: str,
    pipeline: str | None,
    look_up: LookUp | None = None,
    hints: Hints = Hints(),  # noqa: B008 - frozen
) -> Found:
    """What `model` is and the pipeline that serves it; `pipeline` is the deploy file's choice and is only checked.

    `look_up` is asked about a hub id. Without it, or where it does not know, the hints decide, and without those it is
    taken for a language model; prepare() looks again when the files are there.

    Raises:
        ValueError: the model does not exist, or no pipeline can serve it; says which and what to do.
    """
    if pipeline is not None and pipeline not in PIPELINES:
        raise ValueError(
            f"pipeline: unknown pipeline {pipeline}{near(pipeline, PIPELINES)}; known: {', '.join(PIPELINES)}"
        )
    found = _found(model, pipeline, look_up, hints)
    if found.pipeline.refusal:
        raise ValueError(f"{model} is {found.what}: {found.pipeline.refusal}")
    return found


def _found(model: str, pipeline: str | None, look_up: LookUp | None, hints: Hints) -> Found:
    if pipeline == CUSTOM:
        return Found("what its deploy file says", PIPELINES[CUSTOM])
    if model in BUILT_IN or pipeline in BUILT_IN:
        if pipeline not in (None, model):
            raise ValueError(f"pipeline: the pipeline {pipeline} does not serve the model {model}")
        return Found("built in", PIPELINES[model])
    if pipeline is None:
        return what_is(model, look_up, hints) or _chosen("llm")
    if is_hub_id(model):
        _check_hub_id(model)
        return _chosen(pipeline, hints.class_name)
    return _chosen(pipeline, hints.class_name or _class_name(Path(model).expanduser()))


def what_is(model: str, look_up: LookUp | None, hints: Hints) -> Found | None:
    """What a model is by its files, or by what the hub says of them; None for a hub id of which nobody knows.

    Raises:
        ValueError: the model does not exist, or no pipeline is made for it.
    """
    if not is_hub_id(model):
        return inspect(Path(model).expanduser(), hints)
    _check_hub_id(model)
    looked_up = look_up(model, hints.revision or "main", hints.cache) if look_up else None
    if hints.class_name and (looked_up is None or looked_up.class_name is not None):
        return by_class_name(hints.class_name)
    return looked_up


def _check_hub_id(model: str) -> None:
    if not _HUB_ID.fullmatch(model):
        raise ValueError(f"{model!r} is neither a directory here nor a hub id (owner/name)")


def _chosen(pipeline: str, class_name: str = "") -> Found:
    return Found(f"to be served by {pipeline}", PIPELINES[pipeline], class_name)


def _class_name(path: Path) -> str:
    """The class of the diffusion model at a path, "" if there is none: who names a pipeline decides what it serves."""
    try:
        return inspect(path).class_name or ""
    except ValueError:
        return ""


def _is_path(model: str) -> bool:
    return (
        model.startswith(("/", "./", "../", "~"))
        or model in (".", "..")
        or Path(model).exists()
        or model.count("/") > 1
    )
