"""Lays the sources of each stage over each other: files, strategy, variables, flags, overrides, the topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from app.settings import platforms
from app.settings.classnames import output_of
from app.settings.deploy import Document
from app.settings.flags import Flag, by_engine_argument, flags
from app.settings.layers import Layer, Merged
from app.settings.pipelines import Pipeline, StageTopology
from app.settings.schema import StageConfig
from app.settings.sources import Given
from app.settings.stagefields import StageValues
from app.settings.strategy import Strategy

_FIXED = ("name", "kind", "entry", "outputs")


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages are made of. `documents`: strongest first; `explicit`: the names of those that a user chose.

    `class_name`: that of a diffusion model by its files, "" if there is none or nobody knows. `by_stage`: settings by
    stage id and the flag that gave them, the weaker flag first.
    """

    model: str
    pipeline: Pipeline
    class_name: str
    documents: list[Document]
    explicit: set[str]
    strategy: Strategy
    given: Mapping[str, Given]
    by_stage: Mapping[str, Mapping[int, StageValues]]


class Builder:
    """Builds one stage after the other; `origins` by path, such as "stages[0].engine_args.dtype"."""

    def __init__(self, sources: Sources, problems: list[str], warnings: list[str]) -> None:
        self._sources = sources
        self._pipeline = sources.pipeline
        self._problems = problems
        self._warnings = warnings
        self._platform = platforms.current()
        self.origins: dict[str, str] = {}

    def ids(self) -> list[int]:
        """The stage ids: those of the topology, and for an open pipeline those that the deploy files add."""
        known = set(range(len(self._pipeline.stages)))
        for place, stages in self._mentions():
            for stage_id in sorted(set(stages) - known):
                if self._pipeline.open and place not in self._sources.by_stage:
                    known.add(stage_id)
                else:
                    ids = ", ".join(map(str, sorted(known)))
                    self._problems.append(
                        f"{place}: the pipeline {self._pipeline.name} has no stage {stage_id}, only {ids}"
                    )
        return sorted(known)

    def _mentions(self) -> Iterator[tuple[str, Mapping[int, StageValues]]]:
        for document in self._sources.documents:
            yield document.name, document.stages
        for document in self._sources.documents:
            for platform, stages in document.platforms.items():
                yield f"{document.name}: platforms.{platform}", stages
        yield from self._sources.by_stage.items()

    def stage(self, stage_id: int) -> StageConfig:
        """One stage, with the topology's word last."""
        topology = self._topology(stage_id)
        merged = Merged()
        for layer in self._file_layers(stage_id, topology.kind):
            merged.add(layer)
        strategy = self._sources.strategy.stages.get(str(merged.values.get("name") or topology.name))
        if strategy is not None:
            self._check_contradiction(stage_id, strategy, merged)
            merged.add(strategy)
        for layer in self._given_layers(stage_id, topology.kind):
            merged.add(layer)
        if strategy is not None:
            self._warn_of_stronger(stage_id, strategy, merged)
        self._apply_topology(stage_id, topology, merged)
        self.origins |= {f"stages[{stage_id}].{path}": origin for path, origin in merged.origins.items()}
        return msgspec.convert({"stage_id": stage_id, "model": self._sources.model, **merged.values}, StageConfig)

    def _topology(self, stage_id: int) -> StageTopology:
        """What the pipeline says about the stage; in an open pipeline the deploy file may choose the kind."""
        known = stage_id < len(self._pipeline.stages)
        topology = self._pipeline.stages[stage_id] if known else StageTopology(name=f"stage{stage_id}", kind="stub")
        if not self._pipeline.open:
            return topology
        documents = self._sources.documents
        said = [document.stages[stage_id].values for document in documents if stage_id in document.stages]
        kind = next((values["kind"] for values in said if values.get("kind")), topology.kind)
        return msgspec.structs.replace(topology, kind=kind)

    def _file_layers(self, stage_id: int, kind: str) -> Iterator[Layer]:
        """Weakest first."""
        for document in reversed(self._sources.documents):
            owned = {key: value for key, value in document.common.items() if kind in by_engine_argument()[key].kinds}
            lines = {f"engine_args.{key}": document.lines[key] for key in owned}
            yield Layer(document.name, {"engine_args": owned} if owned else {}, lines)
            yield self._checked(document.name, stage_id, kind, document.stages)
            patch = document.platforms.get(self._platform, {})
            yield self._checked(document.name, stage_id, kind, patch)

    def _given_layers(self, stage_id: int, kind: str) -> Iterator[Layer]:
        """Weakest first."""
        for typed in (False, True):
            for flag in flags():
                found = self._sources.given.get(flag.key)
                if found is not None and found.typed is typed and kind in flag.kinds:
                    yield Layer(found.origin, _placed(flag, found.value))
        for name, stages in self._sources.by_stage.items():
            yield self._checked(name, stage_id, kind, stages)

    def _checked(self, name: str, stage_id: int, kind: str, stages: Mapping[int, StageValues]) -> Layer:
        """The layer of one stage entry, after asking whether the stage's kind takes all of it."""
        values = stages.get(stage_id)
        if values is None:
            return Layer(name, {})
        for key in sorted(values.named):
            if kind not in by_engine_argument()[key].kinds:
                self._problems.append(f"{name}: stage {stage_id} is of kind {kind}, which has no setting {key}")
        return Layer(name, values.values, values.lines)

    def _check_contradiction(self, stage_id: int, strategy: Layer, merged: Merged) -> None:
        """A strategy sizes what a deploy file has left open; two files of one user that differ are a mistake."""
        for path, value in _flat(strategy.values):
            origin, other = merged.origins.get(path, ""), merged.find(path)
            if other not in (None, value) and origin.rpartition(":")[0] in self._sources.explicit:
                self._problems.append(
                    f"{strategy.origin_of(path)}: {path} of stage {stage_id} is {value}, but {other} in {origin}"
                )

    def _warn_of_stronger(self, stage_id: int, strategy: Layer, merged: Merged) -> None:
        for path, value in _flat(strategy.values):
            if (used := merged.find(path)) != value:
                self._warnings.append(
                    f"{merged.origins.get(path)}: {path} of stage {stage_id} is {used}, not {value} as in "
                    f"{strategy.origin_of(path)}"
                )

    def _apply_topology(self, stage_id: int, topology: StageTopology, merged: Merged) -> None:
        if topology.kind == "diffusion":
            class_name = str(merged.find("engine_args.model_class_name") or self._sources.class_name)
            output = output_of(class_name)
            topology = msgspec.structs.replace(topology, outputs=(output,)) if output else topology
        fixed = {field: msgspec.to_builtins(getattr(topology, field)) for field in _FIXED}
        for field, value in fixed.items():
            said = merged.values.get(field)
            if said is not None and said != value:
                if self._pipeline.open:
                    continue
                self._problems.append(
                    f"{merged.origins[field]}: {field} of stage {stage_id} is {value!r} in the pipeline "
                    f"{self._pipeline.name} and cannot become {said!r}"
                )
            merged.values[field] = value
            merged.origins[field] = f"pipeline {self._pipeline.name}"


def _placed(flag: Flag, value: Any) -> dict[str, Any]:
    section, _, field = flag.target.partition(".")
    return {"engine_args": {field: value}} if section == "engine" else {field: value}


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value
