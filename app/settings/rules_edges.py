"""Edges and stages of a pipeline that cannot work together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from app.settings.edges import STREAMED, where
from app.settings.layers import Merged
from app.settings.pipelines import PART_OF_A_MODEL

_OF_EDGES = ("async_chunk", "input_timeout_s", "prompt_template")
"""Settings that say how a stage takes the output of another."""

_TASKS = {"llm": "text", "speech": "speech"}

Stages = Mapping[int, Merged]


def edge_problems(stages: Stages) -> Iterator[str]:
    """One sentence for each setting of an edge that cannot be; for every pipeline."""
    for stage_id in stages:
        yield from (f"{where(stages, stage_id)}: {problem}" for problem in _settings(stages[stage_id]))


def graph_problems(stages: Stages) -> Iterator[str]:
    """One sentence for each mistake in a graph that a deploy file made up."""
    names = Counter(str(stage.values["name"]) for stage in stages.values())
    yield from (f"two stages have the name {name}" for name, count in names.items() if count > 1)
    yield from _circles(stages)
    yield from _rivals(stages)
    for stage_id in stages:
        problems = (*_reach(stages, stage_id), *_input(stages, stage_id))
        yield from (f"{where(stages, stage_id)}: {problem}" for problem in problems)


def _settings(stage: Merged) -> Iterator[str]:
    values, kind = stage.values, stage.values["kind"]
    given = [key for key in _OF_EDGES if values.get(key) is not None]
    if not values["sources"]:
        yield from (
            f"{stage.origins[key]}: {key} is for stages that others feed, and it has no sources" for key in given
        )
        return
    if values.get("async_chunk") and kind not in STREAMED:
        origin = stage.origins["async_chunk"]
        yield f"{origin}: async_chunk must be false: a stage of kind {kind} needs all of its input"
    if not values.get("prompt_template"):
        return
    origin = stage.origins["prompt_template"]
    if kind not in ("diffusion", "stub"):
        yield (
            f"{origin}: prompt_template is for stages of kind diffusion; one of kind {kind} takes what its source "
            "answers to the client's own messages"
        )
    elif "{prompt}" not in values["prompt_template"]:
        yield f"{origin}: prompt_template must have {{prompt}} where the client's prompt goes"


def _circles(stages: Stages) -> Iterator[str]:
    """One sentence if stages feed each other in a circle."""
    done: set[int] = set()
    for stage_id in stages:
        if circle := _circle(stages, stage_id, [], done):
            yield f"stages feed each other in a circle: {' <- '.join(map(str, circle))}"
            return


def _circle(stages: Stages, stage_id: int, path: list[int], done: set[int]) -> list[int]:
    if stage_id in path:
        return [*path[path.index(stage_id) :], stage_id]
    if stage_id not in done:
        done.add(stage_id)
        for source in stages[stage_id].values["sources"]:
            if circle := _circle(stages, source, [*path, stage_id], done):
                return circle
    return []


def _rivals(stages: Stages) -> Iterator[str]:
    """Stages that would answer the same requests."""
    first: dict[str, int] = {}
    for stage_id, stage in stages.items():
        kind = stage.values["kind"]
        if kind == "stub" or not stage.values["entry"]:
            continue
        task = _TASKS.get(kind) or f"{stage.values['outputs'][0]} generation"
        if (other := first.setdefault(task, stage_id)) != stage_id:
            yield (
                f"{where(stages, other)} and {where(stages, stage_id)} answer the same requests ({task}): a pipeline "
                "has one stage for each; for more of the same set its num_replicas"
            )


def _reach(stages: Stages, stage_id: int) -> Iterator[str]:
    """Whether any request comes to a stage."""
    values = stages[stage_id].values
    if values["entry"] or values["sources"]:
        return
    followers = [stage.values for stage in stages.values() if stage_id in stage.values["sources"]]
    if not any(follower.get("prompt_template") for follower in followers):
        yield "no request comes to it: set entry: true, or name the stages that feed it under sources"


def _input(stages: Stages, stage_id: int) -> Iterator[str]:
    """What is wrong with what a stage is fed."""
    values = stages[stage_id].values
    kind, sources = values["kind"], values["sources"]
    if kind == PART_OF_A_MODEL:
        yield f"a stage of kind {kind} is part of a model that talks, and such models have their own pipelines"
        return
    if kind == "stub" or not sources:
        return
    if kind in ("llm", "policy"):
        yield f"a stage of kind {kind} answers requests, not what another stage makes: remove its sources"
        return
    if len(sources) > 1:
        yield f"it can have one source, not {len(sources)}"
    for source in sources:
        fed = stages[source].values
        if "text" not in fed["outputs"]:
            made = ", ".join(fed["outputs"]) or "nothing"
            yield f"it needs text, but its source {where(stages, source)} makes {made}"
        elif kind == "speech" and not fed["entry"]:
            yield f"its source {where(stages, source)} must be an entry, as chats begin there: remove entry: false"
    if kind == "diffusion":
        yield from _written(values)


def _written(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a diffusion stage whose prompts another stage writes."""
    if not values.get("prompt_template"):
        yield "it needs a prompt_template: what its source is asked, with {prompt} where the client's prompt goes"
    if values["outputs"] != ["image"]:
        yield f"a source writes prompts for pictures only, and it makes {', '.join(values['outputs'])}"
    if not values["entry"]:
        yield "it must be an entry, as it answers the requests for pictures: remove entry: false"
