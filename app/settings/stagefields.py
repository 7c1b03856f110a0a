"""What may be said about one stage, in a deploy file or in --stage-overrides, and how it is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from app.settings.flags import by_engine_argument, flags
from app.settings.problems import near
from app.settings.schema import StageKind
from app.settings.values import parse


class StageValues(msgspec.Struct, frozen=True, kw_only=True):
    """Checked settings of one stage: fields of StageConfig, with engine arguments under "engine_args".

    `named` are the engine arguments that were given by a name of the flag table, which the stage's kind must own.
    """

    values: dict[str, Any]
    named: frozenset[str] = frozenset()


def check_stage(
    given: Mapping[str, Any], where: str, problems: list[str], skip: frozenset[str] = frozenset()
) -> StageValues:
    """Check the settings of one stage; `where` (file and key path) starts every problem."""
    values: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    known = by_engine_argument()
    fields = _fields()
    for key, value in given.items():
        if key in skip or key == "engine_args":
            continue
        if key in fields:
            values[key] = _checked(fields[key], value, f"{where}.{key}", problems)
        elif key in known:
            arguments[key] = _checked(known[key].value, value, f"{where}.{key}", problems)
        else:
            problems.append(_unknown(key, where))
    named = frozenset(arguments)
    escape = given.get("engine_args", {})
    if isinstance(escape, Mapping):
        for key, value in escape.items():
            check = known[key].value if key in known else _anything
            arguments[str(key)] = _checked(check, value, f"{where}.engine_args.{key}", problems)
    else:
        problems.append(f"{where}.engine_args: expected a mapping, got {escape!r}")
    return StageValues(values=values | ({"engine_args": arguments} if arguments else {}), named=named)


def _checked(check: Callable[[Any], Any], value: Any, where: str, problems: list[str]) -> Any:
    if value is None:
        return None
    try:
        return check(value)
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return None


def _unknown(key: str, where: str) -> str:
    hint = near(key, [*_fields(), *by_engine_argument(), "engine_args"])
    return f"{where}: unknown key {key}{hint or '; an engine argument without a flag goes under engine_args'}"


def _fields() -> dict[str, Callable[[Any], Any]]:
    """Checks of the fields of StageConfig, those with a flag included."""
    return _FIELDS | {flag.field: flag.value for flag in flags() if flag.target.startswith("stage.")}


def _anything(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return parse("str", value)


def _flag(value: Any) -> Any:
    return parse("bool", value)


def _texts(value: Any) -> Any:
    return parse("list", value)


def _kind(value: Any) -> str:
    if value not in get_args(StageKind):
        raise ValueError(f"expected one of {', '.join(get_args(StageKind))}; got {value!r}")
    return str(value)


def _replicas(value: Any) -> int:
    count: int = parse("int", value)
    if count < 1:
        raise ValueError(f"must be at least 1, got {count}")
    return count


def _devices(value: Any) -> str:
    """ "0", "0,1", 0, [0, 1] or "cpu"."""
    names = [str(item) for item in value] if isinstance(value, list) else str(parse("str", value)).split(",")
    names = [name.strip() for name in names]
    for name in names:
        if not re.fullmatch(r"\d+|cpu|GPU-[\w-]+|MIG-[\w-]+", name):
            raise ValueError(f'expected device numbers such as "0,1", or cpu; got {value!r}')
    if len(set(names)) < len(names):
        raise ValueError(f"names a device twice: {value!r}")
    return ",".join(names)


def _environment(value: Any) -> dict[str, str]:
    return {str(name): str(parse("str", text)) for name, text in _mapping(value).items()}


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, got {value!r}")
    return value


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "kind": _kind,
    "entry": _flag,
    "outputs": _texts,
    "devices": _devices,
    "num_replicas": _replicas,
    "env": _environment,
    "default_sampling_params": _mapping,
}
