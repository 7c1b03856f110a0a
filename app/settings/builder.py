"""Lays the sources of each stage over each other: files, strategy, variables, flags, overrides, the topology."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import msgspec

from app.settings import platforms
from app.settings.classnames import output_of
from app.settings.deploy import Document
from app.settings.edges import connect, read_wishes
from app.settings.flags import Flag, by_engine_argument, flags
from app.settings.layers import Layer, Merged
from app.settings.pipelines import CUSTOM, PART_OF_A_MODEL, Pipeline, StageTopology
from app.settings.rules_edges import edge_problems, graph_problems
from app.settings.schema import StageConfig, StageKind
from app.settings.sources import Given
from app.settings.stagefields import StageValues
from app.settings.strategy import Strategy

_FIXED = ("name", "kind", "model_stage", "entry", "outputs", "sources")

_FREE = ("outputs", "stub")
"""What a stub makes is what its arguments say."""

ClassName = Callable[[str, Mapping[str, Any]], str]
"""The pipeline class of a diffusion stage by its model and engine arguments; "" if nobody knows."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages are made of. `documents`: strongest first; `explicit`: the names of those that a user chose.

    `model`: that of stages that name none. `by_stage`: settings by stage id and the flag that gave them, the weaker
    flag first.
    """

    model: str
    pipeline: Pipeline
    class_name: ClassName
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

    def stages(self) -> list[StageConfig]:
        """All stages in the order of their ids."""
        merged = {stage_id: self._merged(stage_id) for stage_id in self.ids()}
        if not merged:
            self._problems.append(f"the pipeline {self._pipeline.name} has no stages: list them under stages")
        documents, flag = self._sources.documents, self._sources.given.get("async_chunk")
        wishes = read_wishes(documents, list(self._mentions()), flag.origin if flag else "", self._problems)
        connect(merged, wishes, self._problems, fixed=not self._pipeline.open)
        self._problems += edge_problems(merged)
        if self._pipeline.name == CUSTOM:  # the stub's are for tests, which make faults
            self._problems += graph_problems(merged)
        return [self._finished(stage_id, stage) for stage_id, stage in merged.items()]

    def _finished(self, stage_id: int, stage: Merged) -> StageConfig:
        self.origins |= {f"stages[{stage_id}].{path}": origin for path, origin in stage.origins.items()}
        return msgspec.convert(
            {"stage_id": stage_id, "per_platform": self._per_platform(stage_id), **stage.values}, StageConfig
        )

    def _per_platform(self, stage_id: int) -> list[str]:
        """The engine arguments that the files leave to the platform."""
        stages = [
            x[stage_id] for document in self._sources.documents for x in document.platforms.values() if stage_id in x
        ]
        return sorted({name for stage in stages for name in stage.values.get("engine_args", {})})

    def _merged(self, stage_id: int) -> Merged:
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
        self._apply_model(stage_id, topology.kind, merged)
        self._apply_topology(stage_id, topology, merged)
        return merged

    def _topology(self, stage_id: int) -> StageTopology:
        """What the pipeline says about the stage; in an open pipeline the deploy file may choose the kind."""
        if not self._pipeline.open:
            return self._pipeline.stages[stage_id]
        documents = self._sources.documents
        said = [document.stages[stage_id].values for document in documents if stage_id in document.stages]
        kind = next((values["kind"] for values in said if values.get("kind")), None)
        if kind is None and not self._pipeline.stages:
            kinds = (name for name in get_args(StageKind) if name != PART_OF_A_MODEL)
            self._problems.append(f"stage {stage_id} says no kind: {', '.join(kinds)}")
        if stage_id < len(self._pipeline.stages):
            topology = self._pipeline.stages[stage_id]
        else:
            topology = StageTopology(name=f"stage{stage_id}", kind="stub")
        kind = kind or topology.kind
        return msgspec.structs.replace(topology, kind=kind, outputs=_OUTPUTS.get(kind, topology.outputs))

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

    def _apply_model(self, stage_id: int, kind: str, merged: Merged) -> None:
        """The model of the stage: its own in an open pipeline, else that of the command line."""
        own, common = merged.values.get("model"), self._sources.model
        if own and not self._pipeline.open:
            self._problems.append(
                f"{merged.origins['model']}: model: the stages of the pipeline {self._pipeline.name} have the model "
                "that the command names; only those of `pipeline: custom` name their own"
            )
        if not own:
            merged.values["model"] = common or ("stub" if kind == "stub" else "")
        if not merged.values["model"]:
            self._problems.append(f"stage {stage_id} ({merged.values.get('name') or kind}) names no model")

    def _apply_topology(self, stage_id: int, topology: StageTopology, merged: Merged) -> None:
        if topology.kind == "diffusion":
            topology = msgspec.structs.replace(topology, outputs=self._made(topology, merged))
        for field in _FIXED:
            value, said = getattr(topology, field), merged.values.get(field)
            value = list(value) if isinstance(value, tuple) else value
            if said is not None and said != value:
                if self._pipeline.open and (field not in ("kind", "outputs") or (field, topology.kind) == _FREE):
                    continue
                self._problems.append(
                    f"{merged.origins[field]}: {field} of stage {stage_id} is {value!r} "
                    f"{self._by_what(field, topology)} and cannot become {said!r}"
                )
            merged.values[field] = value
            merged.origins[field] = f"pipeline {self._pipeline.name}"

    def _made(self, topology: StageTopology, merged: Merged) -> tuple[str, ...]:
        """What a diffusion stage makes: by its class, else what an open pipeline's file says, else the topology."""
        output = output_of(self._sources.class_name(merged.values["model"], merged.values.get("engine_args", {})))
        said = merged.values.get("outputs")
        if output is None and self._pipeline.open and said in (["image"], ["video"], ["audio"]):
            return tuple(said)
        return (output,) if output else topology.outputs

    def _by_what(self, field: str, topology: StageTopology) -> str:
        if self._pipeline.open and field == "outputs":
            return f"by its kind, {topology.kind},"
        return f"in the pipeline {self._pipeline.name}"


_OUTPUTS: dict[str, tuple[str, ...]] = {
    "llm": ("text",),
    "speech": ("audio",),
    "diffusion": ("image",),
    "policy": ("action",),
}
"""What the stages of an open pipeline make, by kind; the class of a diffusion model knows better."""


def _placed(flag: Flag, value: Any) -> dict[str, Any]:
    section, _, field = flag.target.partition(".")
    return {"engine_args": {field: value}} if section == "engine" else {field: value}


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value
