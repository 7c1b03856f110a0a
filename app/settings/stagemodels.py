"""What the models of an open pipeline's stages are, and whether they fit the kinds of their stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.settings.detection import BUILT_IN, what_is
from app.settings.hub import LookUp
from app.settings.inspection import Hints
from app.settings.pipelines import Found
from app.settings.schema import StageConfig


class StageModels:
    """Knows models by name, and looks at each only once. `only` is what is known of the one model of all stages."""

    def __init__(self, look_up: LookUp | None, problems: list[str], only: Found | None) -> None:
        self._only = only
        self._look_up = look_up
        self._problems = problems
        self._found: dict[tuple[str, Hints], Found | None] = {}

    def class_name(self, model: str, arguments: Mapping[str, Any]) -> str:
        """The pipeline class of a diffusion model, "" if that is not known."""
        if self._only is not None:
            return str(arguments.get("model_class_name") or self._only.class_name or "")
        found = self._what(model, arguments)
        return (found and found.class_name) or ""

    def check(self, stages: list[StageConfig]) -> None:
        """Add a problem for each stage whose model is none of its kind; where each has its own."""
        for stage in stages if self._only is None else ():
            found = self._what(stage.model, stage.engine_args)
            if found is not None and not fits(stage, found):
                self._problems.append(
                    f"stage {stage.stage_id} ({stage.name}) is of kind {stage.kind}, but {stage.model} is {found.what}"
                )

    def _what(self, model: str, arguments: Mapping[str, Any]) -> Found | None:
        if not model or model in BUILT_IN:
            return None
        key = (model, stage_hints(arguments))
        if key not in self._found:
            self._found[key] = self._look(*key)
        return self._found[key]

    def _look(self, model: str, hints: Hints) -> Found | None:
        try:
            return what_is(model, self._look_up, hints)
        except ValueError as error:
            self._problems.append(str(error))
            return None


def stage_hints(arguments: Mapping[str, Any]) -> Hints:
    """What a stage's engine arguments say about its model."""
    config = (arguments.get("diffusers_load_kwargs") or {}).get("config")
    return Hints(
        class_name=str(arguments.get("model_class_name") or ""),
        config=config if isinstance(config, str) else "",
        revision=str(arguments.get("revision") or ""),
        cache=str(arguments.get("download_dir") or ""),
    )


def fits(stage: StageConfig, found: Found) -> bool:
    """Whether a stage of this kind can serve what was found. Who names the `family` of a speech model knows it."""
    if stage.kind == "diffusion":
        return found.class_name is not None
    if stage.kind == "speech" and stage.engine_args.get("family"):
        return found.class_name is None
    return stage.kind == "stub" or stage.kind in {topology.kind for topology in found.pipeline.stages}
