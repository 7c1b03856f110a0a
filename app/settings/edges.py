"""The edges of a pipeline: which stage feeds which, settled from all that files and flags say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.settings.deploy import Document
from app.settings.deploykeys import CHUNKS
from app.settings.layers import Layer, Merged
from app.settings.pipelines import PART_OF_A_MODEL
from app.settings.problems import near
from app.settings.stagefields import StageValues

STREAMED = ("llm", "speech", "generation", "stub")
"""Kinds of stages that can begin before their input is complete."""


class WishedEdge(msgspec.Struct, frozen=True):
    """An edge between two stages, by their ids, and the file that says so; `connector` with what it sets."""

    origin: str
    source: int
    target: int
    connector: str = ""
    extra: Mapping[str, Any] = {}


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about edges for the whole pipeline; `async_chunk`: the strongest file's word.

    `flag` is the origin of --async-chunk, "" where it was not given: each stage already has its value.
    """

    async_chunk: Layer | None = None
    flag: str = ""
    edges: list[WishedEdge] = []


def read_wishes(
    documents: Sequence[Document],
    stages: Sequence[tuple[str, Mapping[int, StageValues]]],
    flag: str,
    problems: list[str],
) -> Wishes:
    """What `documents`, the strongest first, say of edges, and what the entries of single `stages` in them do."""
    said = (x for x in documents if x.async_chunk is not None)
    listed = [WishedEdge(x.name, source, target) for x in documents for source, target in x.edges]
    known = {name: extra for document in reversed(documents) for name, extra in document.connectors.items()}
    for place, entries in stages:
        for stage_id, values in entries.items():
            for source, target, name in values.connections:
                if name not in known:
                    problems.append(f"{place}: stage {stage_id}: {name} is not defined under connectors")
                one, other = (stage_id if end is None else end for end in (source, target))
                listed.append(WishedEdge(place, one, other, name, known.get(name, {})))
    problems += _unused(documents, {edge.connector for edge in listed})
    return Wishes(
        async_chunk=next((Layer(x.name, {"async_chunk": x.async_chunk}, x.lines) for x in said), None),
        flag=flag,
        edges=listed,
    )


def _unused(documents: Sequence[Document], used: set[str]) -> Iterator[str]:
    """What connectors set that connect nothing; what they cannot set has been refused already."""
    for document in documents:
        for name, extra in document.connectors.items():
            if extra and extra.keys() <= set(CHUNKS) and name not in used:
                yield f"{document.name}: connectors: {name}.extra: no stage names {name} as a connector"


def where(stages: Mapping[int, Merged], stage_id: int) -> str:
    """How people are told of a stage."""
    return f"stage {stage_id} ({stages[stage_id].values['name']})"


def connect(stages: Mapping[int, Merged], wishes: Wishes, problems: list[str], *, fixed: bool) -> None:
    """Settle `sources` and `async_chunk` of the stages, which have their topology; `fixed` if that has all edges."""
    for stage_id, stage in stages.items():
        stage.values["sources"] = _ids(stages, stage_id, problems)
    for edge in wishes.edges:
        problem = _add(stages, edge.source, edge.target, fixed=fixed) or _set(stages, edge)
        if problem:
            problems.append(f"{edge.origin}: an edge from stage {edge.source} to {edge.target}: {problem}")
    for stage in stages.values():
        _settle_chunks(stage, wishes)


def _ids(stages: Mapping[int, Merged], stage_id: int, problems: list[str]) -> list[int]:
    """`sources` by id; of a name that is also another stage's id, the name counts."""
    names = {str(stage.values["name"]): other for other, stage in stages.items()}
    ids: list[int] = []
    for reference in stages[stage_id].values["sources"]:
        found = names.get(str(reference), reference if reference in stages else None)
        if found is None:
            others = ", ".join(f"{other} ({name})" for name, other in names.items() if other != stage_id)
            hint = near(str(reference), names) or f"; the others are {others or 'none'}"
            origin = stages[stage_id].origins["sources"]
            problems.append(f"{origin}: {where(stages, stage_id)} has no source {reference}{hint}")
        elif found not in ids:
            ids.append(found)
    return ids


def _add(stages: Mapping[int, Merged], source: int, target: int, *, fixed: bool) -> str:
    """Add an edge that stands apart from its stages; why that cannot be."""
    for stage_id in (source, target):
        if stage_id not in stages:
            return f"there is no stage {stage_id}"
    sources = stages[target].values["sources"]
    if source in sources:
        return ""
    if fixed:
        return "this pipeline has no such edge"
    sources.append(source)
    return ""


def _set(stages: Mapping[int, Merged], edge: WishedEdge) -> str:
    """Give the stage what its connector says of how it takes its input, unless it says so itself; or why not."""
    stage = stages[edge.target]
    if edge.extra and stage.values["kind"] != PART_OF_A_MODEL:
        return f"{', '.join(edge.extra)} of {edge.connector} are for vocoders, which stage {edge.target} is none"
    arguments = stage.values.get("engine_args", {})
    if missing := {key: value for key, value in edge.extra.items() if key not in arguments}:
        stage.add(Layer(edge.origin, {"engine_args": missing}))
    return ""


def _settle_chunks(stage: Merged, wishes: Wishes) -> None:
    """Whether a stage begins with the first piece of its input, where it does not say so itself."""
    values, kind = stage.values, stage.values["kind"]
    if not values["sources"]:
        if wishes.flag and stage.origins.get("async_chunk") == wishes.flag:
            del values["async_chunk"], stage.origins["async_chunk"]
        return
    if values.get("async_chunk") is not None:
        return
    if kind not in STREAMED:
        stage.add(Layer(f"stages of kind {kind} need all of their input", {"async_chunk": False}))
    elif wishes.async_chunk is not None:
        stage.add(wishes.async_chunk)
