"""strategy.yaml: how wide each stage is, by its name. Stronger than the deploy file, weaker than variables and flags.

strategies:
  thinker: [{axis: tp, size: 2}, {axis: stage_replica, size: 2, routing: least_queue}]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from app.settings.layers import Layer
from app.settings.problems import near
from app.settings.schema import LoadBalancing
from app.settings.yamlfile import read_mapping

_ROUTINGS: dict[str, LoadBalancing] = {
    "random": "random",
    "round_robin": "round-robin",
    "least_queue": "least-queue-length",
}
_ARGUMENTS = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
_ROUTED = ("dp", "stage_replica")


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which a stage is spread. `name` is a note for people."""

    axis: Literal["tp", "pp", "dp", "ep", "stage_replica"]
    size: Annotated[int, msgspec.Meta(ge=1)]
    routing: Literal["random", "round_robin", "least_queue"] | None = None
    name: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    strategies: dict[str, list[Axis]]


class Strategy(msgspec.Struct, frozen=True):
    """A checked file: a layer of settings by stage name."""

    name: str = ""
    stages: dict[str, Layer] = {}


def read_strategy(path: str, problems: list[str]) -> Strategy:
    """The strategy in a file; what is wrong is added to `problems`."""
    try:
        content, lines = read_mapping(Path(path).expanduser())
    except ValueError as error:
        problems.append(f"--strategy-config: {error}")
        return Strategy(path)
    try:
        strategies = msgspec.convert(content, _File).strategies
    except msgspec.ValidationError as error:
        problems.append(f"{path}: {error}")
        return Strategy(path)
    stages = {}
    for stage, axes in strategies.items():
        where = f"{path}: strategies.{stage}"
        problems += (f"{where}: {problem}" for problem in _problems(axes))
        stages[stage] = Layer(path, _values(axes), _located(stage, axes, lines))
    return Strategy(path, stages)


def check_names(strategy: Strategy, known: list[str], problems: list[str]) -> None:
    """Every stage that a strategy names must be one of the pipeline's."""
    for stage in strategy.stages:
        if stage not in known:
            names = ", ".join(known)
            problems.append(f"{strategy.name}: there is no stage {stage}{near(stage, known)}; the stages are: {names}")


def _problems(axes: list[Axis]) -> list[str]:
    sizes = {axis.axis: axis.size for axis in axes}
    problems = []
    if len(sizes) < len(axes):
        problems.append("an axis is given twice")
    if "ep" in sizes and sizes["ep"] != sizes.get("tp", 1) * sizes.get("dp", 1):
        problems.append(f"the size of ep must be that of tp x dp, {sizes.get('tp', 1) * sizes.get('dp', 1)}")
    if len({axis.routing for axis in axes if axis.routing}) > 1:
        problems.append("a stage has one routing")
    problems += (
        f"routing does not belong to {axis.axis}" for axis in axes if axis.routing and axis.axis not in _ROUTED
    )
    return problems


def _values(axes: list[Axis]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for axis in axes:
        if axis.routing:
            values["lb_policy"] = _ROUTINGS[axis.routing]
        match axis.axis:
            case "stage_replica":
                values["num_replicas"] = axis.size
            case "ep":
                arguments["enable_expert_parallel"] = True
            case name:
                arguments[_ARGUMENTS[name]] = axis.size
    return values | ({"engine_args": arguments} if arguments else {})


def _located(stage: str, axes: list[Axis], lines: dict[str, int]) -> dict[str, int]:
    """The line of each value of `_values`."""
    located = {}
    for index, axis in enumerate(axes):
        name = _ARGUMENTS.get(axis.axis, "enable_expert_parallel")
        path = "num_replicas" if axis.axis == "stage_replica" else f"engine_args.{name}"
        located[path] = lines[f"strategies.{stage}[{index}]"]
        if axis.routing:
            located["lb_policy"] = located[path]
    return located
