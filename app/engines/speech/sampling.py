"""The sampling parameters of a request: the stage's defaults under its own, judged by what the model's family has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.engines.refusal import refuse
from app.settings.problems import did_you_mean


def sampling_of(
    cls: type[msgspec.Struct], defaults: Mapping[str, Any], extra: Mapping[str, Any], family: str
) -> msgspec.Struct:
    """An object of the family's sampling class; `extra` is what the request says.

    Raises:
        EngineError: 400, the family has no such parameter, or not such a value; `param` is its name.
    """
    types = {field.name: field.type for field in msgspec.structs.fields(cls)}
    values = {}
    for name, value in {**defaults, **extra}.items():
        if name not in types:
            takes = f"it takes {', '.join(types)}" if types else "it takes none"
            refuse(f"{family} models have no parameter {name!r}{did_you_mean(name, types) or f'; {takes}'}", name)
        if value is None:
            continue
        try:
            values[name] = msgspec.convert(value, types[name], strict=True)
        except msgspec.ValidationError as error:
            refuse(f"{name}: {error}; got {value!r}", name)
    return cls(**values)
