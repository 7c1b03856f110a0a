"""Text and plain values to typed values: one parser a kind, shared by the command line, variables and YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

ValueKind = Literal["str", "int", "float", "bool", "count", "size", "json", "list", "any"]
"""count: a number that may be written 32k; size: bytes, may be written 512MiB; list: several texts; any: text, or an
object as JSON, that the consumer judges."""

_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(iB|B)?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def parse(kind: ValueKind, value: object) -> Any:
    """Convert what was typed, or what YAML or Python gave, to the kind's type.

    Raises:
        ValueError: it is not one; the message says what is expected and what came.
    """
    return _PARSERS[kind](value)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected text, got {_shown(value)}")
    return str(value)


def _int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    raise ValueError(f"expected a whole number, got {_shown(value)}")


def _float(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError(f"expected a number, got {_shown(value)}")


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise ValueError(f"expected true or false, got {_shown(value)}")


def _quantity(value: object) -> int:
    """1k is 1000 and 1K is 1024, as vLLM reads them; with a unit, kB is 1000 and KiB is 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a number such as 4096, 32k or 2GiB, got {_shown(value)}")
    number, prefix, unit = match.groups()
    binary = unit == "iB" or (not unit and prefix.isupper())
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()])


def _count(value: object) -> int | str:
    return "auto" if value == "auto" else _quantity(value)


def _json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    text = _file(value[1:]) if value.startswith("@") else value
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        where = f" in {value[1:]}" if value.startswith("@") else ""
        raise ValueError(f"expected JSON{where}: {error}") from None


def _any(value: object) -> Any:
    return _json(value) if isinstance(value, str) and value.startswith(("{", "@")) else value


def _file(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _list(value: object) -> list[str]:
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str) else msgspec.json.encode(item).decode() for item in value]
    text = _text(value).strip()
    if text.startswith("["):
        return _list(_json(text))
    if text.startswith("{"):
        return [text]
    return [part for part in re.split(r"[,\s]+", text) if part]


def _shown(value: object) -> str:
    return "nothing" if value is None or value == "" else repr(value)


_PARSERS: dict[ValueKind, Callable[[object], Any]] = {
    "str": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "count": _count,
    "size": _quantity,
    "json": _json,
    "list": _list,
    "any": _any,
}
