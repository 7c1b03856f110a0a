"""What flags have been given, and by whom: typed, handed over by `omni-app serve`, or in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from app.settings import environment
from app.settings.flags import by_key
from app.settings.problems import near

Source = Literal["flag", "argument"]
"""How a person typed it: on a command line, or as an argument of create_app()."""


class Given(msgspec.Struct, frozen=True):
    """A flag's value and where it came from."""

    value: Any
    origin: str
    typed: bool


def gather(
    typed: Mapping[str, Any], environ: Mapping[str, str], source: Source, problems: list[str], warnings: list[str]
) -> dict[str, Given]:
    """All values that flags have been given, by key. A typed value hides the variable; None counts as not given."""
    given: dict[str, Given] = {}
    _take(given, _settings_file(environ, problems), "flag", problems)
    _take(given, typed, source, problems)
    for key, value in environment.read(environ, given, problems, warnings).items():
        given[key] = Given(value, f"env {by_key()[key].variable}", typed=False)
    return given


def _take(given: dict[str, Given], values: Mapping[str, Any], source: Source, problems: list[str]) -> None:
    for key, value in values.items():
        flag = by_key().get(key)
        if flag is None:
            problems.append(f"{source} {key}: there is no such setting{near(key, by_key())}")
            continue
        if value is None:
            continue
        origin = f"flag --{flag.name}" if source == "flag" else f"argument {key}"
        try:
            given[key] = Given(flag.value(value), origin, typed=True)
        except ValueError as error:
            problems.append(f"{origin}: {error}")


def _settings_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    path = environ.get(environment.SETTINGS_FILE)
    if not path:
        return {}
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        problems.append(f"{environment.SETTINGS_FILE}={path} cannot be read: {error}")
        return {}
