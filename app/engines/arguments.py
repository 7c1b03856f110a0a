"""The engine arguments of a stage as a typed struct, checked before anything heavy is imported."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from app.settings.problems import did_you_mean
from app.settings.schema import StageConfig

Options = TypeVar("Options", bound=msgspec.Struct)

_DTYPES = {"half": "float16", "float": "float32"}


def read_arguments(stage: StageConfig, cls: type[Options], engine: str) -> Options:
    """The stage's engine arguments and sampling defaults as `cls`, whose fields have the names of the arguments.

    A field `default_sampling_params` is the stage's; `dtype` and `device` mean the same for every engine that has them.
    `engine` is what the engine is called in messages.

    Raises:
        ValueError: an argument is unknown or has a value that cannot be; the message names stage and argument.
    """
    where = f"stage {stage.stage_id} ({stage.name})"
    arguments = {name: value for name, value in stage.engine_args.items() if value is not None}
    fields = {field.name for field in msgspec.structs.fields(cls)}
    known = fields - {"default_sampling_params"}
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"{where}: engine argument {name!r} is unknown to the {engine} engine{hint}")
    if stage.devices == "cpu":
        arguments.setdefault("device", "cpu")
    if isinstance(arguments.get("dtype"), str):
        arguments["dtype"] = _dtype(arguments["dtype"], where)
    if "default_sampling_params" in fields:  # a stage that samples nothing has none
        arguments["default_sampling_params"] = stage.default_sampling_params
    return _converted(cls, arguments, where)


def _dtype(name: str, where: str) -> str:
    name = _DTYPES.get(name.lower(), name.lower())
    if name not in ("auto", "bfloat16", "float16", "float32"):
        raise ValueError(f"{where}: dtype must be auto, bfloat16, float16 or float32; got {name!r}")
    return name


def _converted(cls: type[Options], arguments: dict[str, Any], where: str) -> Options:
    """Field by field, so that the message can name the argument without a path."""
    types = {field.name: field.type for field in msgspec.structs.fields(cls)}
    checked = {}
    for name, value in arguments.items():
        try:
            checked[name] = msgspec.convert(value, types[name], strict=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: engine argument {name!r}: {error}; got {value!r}") from None
    return cls(**checked)
