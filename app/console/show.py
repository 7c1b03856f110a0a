"""`omni-app config`: the resolved settings as YAML, each value with its origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from app.console import plan
from app.console.judge import engine_problems
from app.settings import engines
from app.settings.flags import Flag, flags
from app.settings.problems import ConfigError
from app.settings.resolve import Resolution, examine

_HIDDEN = "(hidden)"
_COLUMN = 44


def run(typed: Mapping[str, Any], as_json: bool = False, ask_engine: bool = False) -> int:
    """Print the configuration that `serve` would use, with `ask_engine` after asking vLLM too; the exit code.

    Raises:
        ConfigError: what was typed cannot work.
    """
    resolution = examine(typed, os.environ, source="flag", ask_hub=True)
    if ask_engine and (problems := engine_problems(resolution.settings)):
        raise ConfigError(problems)
    click.echo(as_json_text(resolution) if as_json else as_yaml(resolution))
    return 0


def as_json_text(resolution: Resolution) -> str:
    """Settings, origins, memory needs and warnings as one JSON object."""
    content = {
        "settings": _visible(resolution),
        "memory": plan.needs(resolution.settings),
        "warnings": _warnings(resolution),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def as_yaml(resolution: Resolution) -> str:
    """YAML with the origin of each value in a comment, then stages and memory, then the warnings."""
    settings = _visible(resolution)
    origins = settings.pop("origins")
    lines = list(_lines(settings, origins, "", 0))
    lines += (f"# {line}" for line in plan.as_lines(resolution.settings))
    lines += (f"# warning: {warning}" for warning in _warnings(resolution))
    return "\n".join(lines)


def _warnings(resolution: Resolution) -> list[str]:
    return [*resolution.warnings, *engines.problems(resolution.settings.stages)]


def _visible(resolution: Resolution) -> dict[str, Any]:
    """The settings as plain data without secrets."""
    settings: dict[str, Any] = msgspec.to_builtins(resolution.settings)
    settings.pop("created", None)
    for flag in flags():
        if flag.secret:
            _hide(settings, flag)
    return settings


def _hide(settings: dict[str, Any], flag: Flag) -> None:
    section, _, field = flag.target.partition(".")
    holders = [stage["engine_args"] for stage in settings["stages"]] if section == "engine" else [settings[section]]
    for holder in holders:
        if holder.get(field):
            holder[field] = _HIDDEN


def _lines(value: Mapping[str, Any], origins: Mapping[str, str], path: str, depth: int) -> Iterator[str]:
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        pad = "  " * depth
        if isinstance(item, dict) and item:
            yield f"{pad}{key}:"
            yield from _lines(item, origins, where, depth + 1)
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            yield f"{pad}{key}:"
            for stage in item:
                yield from _item(stage, origins, f"{where}[{stage['stage_id']}]", depth + 1)
        else:
            text = f"{pad}{key}: {msgspec.json.encode(item).decode()}"
            yield f"{text:<{_COLUMN}} # {origins.get(where, 'default')}"


def _item(stage: Mapping[str, Any], origins: Mapping[str, str], path: str, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for number, line in enumerate(_lines(stage, origins, path, depth + 1)):
        yield line if number else f"{pad}- {line.lstrip()}"
