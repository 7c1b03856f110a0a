"""The pipelines that this version runs: their stages and the kind of each. Sizes are in app/deploy/*.yaml."""

from __future__ import annotations

import msgspec

from app.settings.schema import StageKind


class StageTopology(msgspec.Struct, frozen=True, kw_only=True):
    """What the pipeline fixes for a stage; no configuration can change it."""

    name: str
    kind: StageKind
    entry: bool = True
    outputs: tuple[str, ...] = ("text",)


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in order of their ids. An `open` pipeline takes further stages from the deploy file."""

    name: str
    stages: tuple[StageTopology, ...]
    open: bool = False


PIPELINES = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline(name="llm", stages=(StageTopology(name="llm", kind="llm"),)),
        Pipeline(name="demo", stages=(StageTopology(name="text", kind="llm"),)),
        Pipeline(name="stub", stages=(StageTopology(name="stub", kind="stub"),), open=True),
    )
}
