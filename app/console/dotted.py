"""`--hf-overrides.rope.theta 5` and `-cc.mode=none`: parts of an object typed one by one, as vLLM takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from app.settings.flags import flags

_DOTTED = re.compile(r"(?P<option>--?[A-Za-z][\w-]*)\.(?P<path>[\w.-]+)(?:=(?P<value>.*))?", re.DOTALL)


def join_dotted(args: Sequence[str]) -> list[str]:
    """Replace the parts of each object by one `--flag JSON` at the end; a whole object given too is completed."""
    objects = {option: f"--{flag.name}" for flag in flags() if flag.kind in ("json", "any") for option in flag.options}
    parts: dict[str, dict[str, Any]] = {}
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        match = _DOTTED.fullmatch(word)
        name = objects.get(match["option"].replace("_", "-")) if match else None
        if match is None or name is None:
            rest.append(word)
            continue
        value = match["value"] if match["value"] is not None else next(words, "")
        _put(parts.setdefault(name, {}), match["path"].split("."), _value(value))
    for name, content in parts.items():
        whole = dict(_taken(rest, name, objects))
        rest[:0] = [f"{name}={msgspec.json.encode(_merged(whole, content)).decode()}"]
    return rest


def _put(content: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = content.setdefault(key, {})
        content = inner if isinstance(inner, dict) else {}
    content[path[-1]] = value


def _value(text: str) -> Any:
    """JSON where it is JSON, otherwise text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _taken(rest: list[str], name: str, objects: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Take the whole object `--name JSON` out of `rest` and give its items; what is no object is left where it is."""
    for position, word in enumerate(rest):
        option, equals, text = word.partition("=")
        if objects.get(option.replace("_", "-")) == name:
            width = 1 if equals else 2
            value = _value(text if equals else "".join(rest[position + 1 : position + 2]))
            if isinstance(value, dict):
                del rest[position : position + width]
                yield from value.items()
            return


def _merged(whole: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    for key, value in parts.items():
        inner = whole.get(key)
        whole[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return whole
