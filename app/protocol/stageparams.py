"""`sampling_params_list`, vllm-omni's field for the parameters of each stage: one object a stage, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from app.protocol.errors import ApiError

NAME = "sampling_params_list"
T = TypeVar("T")
Params = dict[str, msgspec.Raw]
StageParams = list[Params | None]

_decode = msgspec.json.Decoder(Params).decode


def place(position: int, name: str) -> str:
    """Where the parameter of that name for the stage at `position` is in a request."""
    return f"{NAME}[{position}].{name}"


def params_of(given: StageParams | None, *positions: int) -> list[Params]:
    """What is given for the stages at `positions` of the pipeline.

    Raises:
        ApiError: 400, something is given for a stage that the request does not pass through.
    """
    found = [entry or {} for entry in given or ()]
    for position, entry in enumerate(found):
        if entry and position not in positions:
            message = f"{NAME}[{position}]: this request does not pass through that stage; leave it empty or null."
            raise ApiError(400, message, param=f"{NAME}[{position}]", code="unsupported_parameter")
    return [found[position] if position < len(found) else {} for position in positions]


def for_one_stage(body: bytes, given: StageParams, position: int) -> bytes:
    """The request `body` of the stage at `position`, with the parameters that are given for it.

    Raises:
        ApiError: 400, something is given twice, or for another stage.
    """
    (params,) = params_of(given, position)
    fields = _decode(body)
    del fields[NAME]
    return msgspec.json.encode(merged(fields, params, position))


def merged(fields: Mapping[str, T], params: Mapping[str, T], position: int) -> dict[str, T]:
    """The fields of a request with the parameters of the stage at `position`.

    Raises:
        ApiError: 400, something is given twice.
    """
    for name in params:
        if name in fields:
            path = place(position, name)
            raise ApiError(400, f"{path} says again what {name} says; give one.", param=path, code="invalid_value")
    return {**fields, **params}
