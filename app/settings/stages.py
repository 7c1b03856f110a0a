"""The stages of a pipeline with their settings, laid together from deploy files, variables, flags and overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from app.settings import platforms
from app.settings.deploy import SHIPPED, Document, find, read_chain
from app.settings.detection import detect
from app.settings.flags import Flag, by_engine_argument, by_key, flags
from app.settings.layers import Layer, Merged
from app.settings.pipelines import PIPELINES, Pipeline, StageTopology
from app.settings.schema import StageConfig
from app.settings.sources import Given
from app.settings.stagefields import StageValues, check_stage

_FIXED = ("name", "kind", "entry", "outputs")
_BY_STAGE = ("default_sampling_params", "stage_overrides")
"""Flags that are objects by stage id, the weaker one first."""


class ResolvedStages(msgspec.Struct, frozen=True):
    """The stages in order of their ids; `origins` by path, such as "stages[0].engine_args.dtype"."""

    pipeline: str
    stages: list[StageConfig]
    origins: dict[str, str]


def resolve_stages(model: str, given: Mapping[str, Given], problems: list[str], warnings: list[str]) -> ResolvedStages:
    """Find the pipeline of `model` and the settings of its stages; adds what is wrong to `problems`."""
    documents = _explicit_documents(given, problems)
    by_stage = {f"--{by_key()[key].name}": _by_stage(given, key, problems) for key in _BY_STAGE}
    named = next((document.pipeline for document in documents if document.pipeline), None)
    try:
        pipeline = PIPELINES[detect(model, named)]
    except ValueError as error:
        problems.append(str(error))
        return ResolvedStages("", [], {})
    shipped = SHIPPED / f"{pipeline.name}.yaml"
    if shipped.name not in {document.name for document in documents}:
        documents += read_chain(shipped, problems)
    builder = _Builder(model, pipeline, documents, given, by_stage, problems)
    stages = [builder.stage(stage_id) for stage_id in builder.ids()]
    _check_owned(stages, given, problems, warnings)
    return ResolvedStages(pipeline.name, stages, builder.origins)


def _explicit_documents(given: Mapping[str, Given], problems: list[str]) -> list[Document]:
    chosen = given.get("deploy_config")
    if chosen is None:
        return []
    try:
        return read_chain(find(chosen.value), problems)
    except ValueError as error:
        problems.append(f"{chosen.origin}: {error}")
        return []


def _by_stage(given: Mapping[str, Given], key: str, problems: list[str]) -> dict[int, StageValues]:
    """The value of a flag that is an object by stage id, as settings of those stages."""
    chosen = given.get(key)
    if chosen is None:
        return {}
    if not isinstance(chosen.value, dict):
        problems.append(f'{chosen.origin}: expected an object by stage id, such as {{"0": {{...}}}}')
        return {}
    stages = {}
    for stage_id, values in chosen.value.items():
        where = f"{chosen.origin}: {stage_id}"
        if not (stage_id.isascii() and stage_id.isdigit()):
            problems.append(f"{where}: a stage id is a whole number")
        elif not isinstance(values, dict):
            problems.append(f"{where}: expected an object of settings, got {values!r}")
        elif key == "stage_overrides":
            stages[int(stage_id)] = check_stage(values, where, problems)
        else:
            stages[int(stage_id)] = StageValues(values={key: values})
    return stages


def _check_owned(
    stages: list[StageConfig], given: Mapping[str, Given], problems: list[str], warnings: list[str]
) -> None:
    """A typed flag that no stage takes is an error; a variable may be meant for another server on this host."""
    kinds = {stage.kind for stage in stages}
    for key, found in given.items():
        flag = by_key()[key]
        if flag.kinds and not kinds.intersection(flag.kinds):
            told = problems if found.typed else warnings
            told.append(
                f"{found.origin}: no stage of this pipeline takes it (its stages are: {', '.join(sorted(kinds))})"
            )


class _Builder:
    """Lays the sources of each stage over each other."""

    def __init__(
        self,
        model: str,
        pipeline: Pipeline,
        documents: list[Document],
        given: Mapping[str, Given],
        by_stage: Mapping[str, Mapping[int, StageValues]],
        problems: list[str],
    ) -> None:
        self._model = model
        self._pipeline = pipeline
        self._documents = documents
        self._given = given
        self._by_stage = by_stage
        self._problems = problems
        self._platform = platforms.current()
        self.origins: dict[str, str] = {}

    def ids(self) -> list[int]:
        """The stage ids: those of the topology, and for an open pipeline those that the deploy files add."""
        known = set(range(len(self._pipeline.stages)))
        for place, stages in self._mentions():
            for stage_id in sorted(set(stages) - known):
                if self._pipeline.open and place not in self._by_stage:
                    known.add(stage_id)
                else:
                    ids = ", ".join(map(str, sorted(known)))
                    self._problems.append(
                        f"{place}: the pipeline {self._pipeline.name} has no stage {stage_id}, only {ids}"
                    )
        return sorted(known)

    def _mentions(self) -> Iterator[tuple[str, Mapping[int, StageValues]]]:
        for document in self._documents:
            yield document.name, document.stages
        for document in self._documents:
            for platform, stages in document.platforms.items():
                yield f"{document.name}: platforms.{platform}", stages
        yield from self._by_stage.items()

    def stage(self, stage_id: int) -> StageConfig:
        """One stage, with the topology's word last."""
        topology = self._topology(stage_id)
        merged = Merged()
        for layer in self._layers(stage_id, topology.kind):
            merged.add(layer)
        self._apply_topology(stage_id, topology, merged)
        self.origins |= {f"stages[{stage_id}].{path}": origin for path, origin in merged.origins.items()}
        return msgspec.convert({"stage_id": stage_id, "model": self._model, **merged.values}, StageConfig)

    def _topology(self, stage_id: int) -> StageTopology:
        """What the pipeline says about the stage; in an open pipeline the deploy file may choose the kind."""
        known = stage_id < len(self._pipeline.stages)
        topology = self._pipeline.stages[stage_id] if known else StageTopology(name=f"stage{stage_id}", kind="stub")
        if not self._pipeline.open:
            return topology
        said = [document.stages[stage_id].values for document in self._documents if stage_id in document.stages]
        kind = next((values["kind"] for values in said if values.get("kind")), topology.kind)
        return msgspec.structs.replace(topology, kind=kind)

    def _layers(self, stage_id: int, kind: str) -> Iterator[Layer]:
        """Weakest first."""
        for document in reversed(self._documents):
            owned = {key: value for key, value in document.common.items() if kind in by_engine_argument()[key].kinds}
            yield Layer(document.name, {"engine_args": owned} if owned else {})
            yield self._checked(document.name, stage_id, kind, document.stages)
            patch = document.platforms.get(self._platform, {})
            yield self._checked(f"{document.name} platform {self._platform}", stage_id, kind, patch)
        for typed in (False, True):
            for flag in flags():
                found = self._given.get(flag.key)
                if found is not None and found.typed is typed and kind in flag.kinds:
                    yield Layer(found.origin, _placed(flag, found.value))
        for name, stages in self._by_stage.items():
            yield self._checked(name, stage_id, kind, stages)

    def _checked(self, name: str, stage_id: int, kind: str, stages: Mapping[int, StageValues]) -> Layer:
        """The layer of one stage entry, after asking whether the stage's kind takes all of it."""
        values = stages.get(stage_id)
        if values is None:
            return Layer(name, {})
        for key in sorted(values.named):
            if kind not in by_engine_argument()[key].kinds:
                self._problems.append(f"{name}: stage {stage_id} is of kind {kind}, which has no setting {key}")
        return Layer(f"{name} (stage {stage_id})", values.values)

    def _apply_topology(self, stage_id: int, topology: StageTopology, merged: Merged) -> None:
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
