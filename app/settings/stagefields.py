"""What may be said about one stage, in a deploy file or in --stage-overrides, and how it is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from app.settings.devices import parse_devices
from app.settings.flags import Flag, by_engine_argument, flags
from app.settings.problems import near
from app.settings.schema import StageConfig, StageKind
from app.settings.values import parse

ESCAPES = ("engine_args", "engine_extras")
"""Mappings of arguments that go to the engine under their own names, whatever they are."""


Connection = tuple[int | None, int | None, str]


class StageValues(msgspec.Struct, frozen=True, kw_only=True):
    """Checked settings of one stage: fields of StageConfig, with engine arguments under "engine_args".

    `named` are the engine arguments that were given by a name of the flag table, which the stage's kind must own.
    `refused` are problems for a pipeline that runs, not for one that cannot. `connections` are the other stages that it
    is connected to, as (from, to) with None for itself, each with the name of a connector. `lines` are those of the
    file by path in `values`.
    """

    values: dict[str, Any]
    named: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()
    lines: dict[str, int] = {}


def check_stage(given: Mapping[str, Any], where: str, problems: list[str]) -> StageValues:
    """Check the settings of one stage; `where` (file and key path) starts every problem."""
    checker = _Checker(where, problems)
    for key, value in given.items():
        checker.take(key, value)
    arguments = checker.arguments
    return StageValues(
        values=checker.fields | ({"engine_args": arguments} if arguments else {}),
        named=frozenset(checker.named),
        refused=tuple(checker.refused),
        connections=tuple(checker.connections),
    )


def value_path(path: str) -> str:
    """Where in StageValues.values is what stands at `path` of a stage entry; there engine arguments need no prefix."""
    path = re.sub(rf"^({'|'.join(ESCAPES)}|runtime)\.", "", path)
    first = path.partition(".")[0]
    return path if first in {field.name for field in msgspec.structs.fields(StageConfig)} else f"engine_args.{path}"


class _Checker:
    def __init__(self, where: str, problems: list[str]) -> None:
        self._where = where
        self._problems = problems
        self.fields: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.named: set[str] = set()
        self.refused: list[str] = []
        self.connections: list[Connection] = []

    def take(self, key: str, value: Any) -> None:
        flag = by_engine_argument().get(key)
        if key in ESCAPES:
            self._take_escape(key, value)
        elif key == "runtime":
            self._take_runtime(value)
        elif key in _checks():
            self.fields[key] = self._checked(_checks()[key], value, key)
        elif key in _CONNECTORS:
            self._take_connectors(key, value)
        elif key in REFUSED_KEYS:
            self.refused.append(f"{self._where}.{key}: {REFUSED_KEYS[key]}")
        elif flag is not None:
            self._take_argument(flag, key, value, key)
            self.named.add(key)
        elif key in DECIDED_BY_PIPELINE:
            self._problems.append(f"{self._where}.{key}: the pipeline decides it, no file can; remove it")
        else:
            self._problems.append(f"{self._where}: {_unknown(key)}")

    def _take_argument(self, flag: Flag, key: str, value: Any, place: str) -> None:
        self.arguments[key] = self._checked(flag.value, value, place)

    def _take_escape(self, name: str, given: Any) -> None:
        if not isinstance(given, Mapping):
            self._problems.append(f"{self._where}.{name}: expected a mapping, got {given!r}")
            return
        for key, value in given.items():
            flag = by_engine_argument().get(key)
            if flag is None:
                self.arguments[str(key)] = value
            else:
                self._take_argument(flag, key, value, f"{name}.{key}")
                self.named.add(str(key))

    def _take_runtime(self, given: Any) -> None:
        """The older place of three fields; it wins over the newer one."""
        if not isinstance(given, Mapping):
            self._problems.append(f"{self._where}.runtime: expected a mapping, got {given!r}")
            return
        for key, value in given.items():
            if key in ("devices", "num_replicas", "env"):
                self.fields[key] = self._checked(_checks()[key], value, f"runtime.{key}")
            else:
                self._problems.append(
                    f"{self._where}.runtime: only devices, num_replicas and env belong here; got {key}"
                )

    def _take_connectors(self, key: str, given: Any) -> None:
        """`{to_stage_1: NAME}`, or from_stage: an edge, said by one of its ends."""
        form = _CONNECTORS[key]
        for stage, name in given.items() if isinstance(given, Mapping) else [("", given)]:
            match = form.fullmatch(str(stage))
            if match is None or not isinstance(name, str):
                self._problems.append(f"{self._where}.{key}: expected {form.pattern.replace('([0-9]+)', 'N')}: NAME")
            elif key == "input_connectors":
                self.connections.append((int(match[1]), None, name))
            else:
                self.connections.append((None, int(match[1]), name))

    def _checked(self, check: Callable[[Any], Any], value: Any, place: str) -> Any:
        if value is None:
            return None
        try:
            return check(value)
        except ValueError as error:
            self._problems.append(f"{self._where}.{place}: {error}")
            return None


DECIDED_BY_PIPELINE = frozenset(
    {
        "stage_type",
        "engine_input_source",
        "input_sources",
        "final_output",
        "final_output_type",
        "is_comprehension",
        "custom_process_input_func",
        "model_stage",
        "execution_type",
    }
)
"""Keys of older deploy files that no file decides any more."""
_CONNECTORS = {
    "input_connectors": re.compile("from_stage_([0-9]+)"),
    "output_connectors": re.compile("to_stage_([0-9]+)"),
}

_OF_QWEN3_TTS = "a setting of Qwen3-TTS, which cannot run here; remove it"
_OF_PAIRS = (
    "a stage that only prefills and one that only decodes need a GPU connector between their caches (NIXL, Mooncake), "
    "which this server does not drive; remove it and give the stage num_replicas, with lb_policy: session-affinity "
    "so that prompts find their prefix in a cache, and enable_chunked_prefill so that a long prompt holds up no others"
)
_OF_CACHES = (
    "no picture stage here reads the cache of a language model (BAGEL and its like); remove it and let the language "
    "model write the prompt: sources and prompt_template of the picture stage"
)
REFUSED_KEYS = {
    "subtalker_sampling_params": _OF_QWEN3_TTS,
    "silence_ban_frames": _OF_QWEN3_TTS,
    "default_pooling_params": "say it in each request, or in pooler_config, which is vLLM's own argument",
    "is_prefill_only": _OF_PAIRS,
    "is_decode_only": _OF_PAIRS,
    "omni_kv_config": _OF_CACHES,
    "omni_from_stage": _OF_CACHES,
    "omni_to_stage": _OF_CACHES,
}
"""Keys of a stage that no stage that runs can have."""


def _unknown(key: str) -> str:
    hint = near(key, [*_checks(), *by_engine_argument(), *_CONNECTORS, *REFUSED_KEYS, *ESCAPES])
    return f"unknown key {key}{hint or '; an engine argument without a flag goes under engine_args'}"


def _checks() -> dict[str, Callable[[Any], Any]]:
    """Checks of the fields of StageConfig, those with a flag included."""
    return _FIELDS | {flag.field: flag.value for flag in flags() if flag.target.startswith("stage.")}


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


def _environment(value: Any) -> dict[str, str]:
    return {str(name): str(parse("str", text)) for name, text in _mapping(value).items()}


def _references(value: Any) -> list[int | str]:
    """Other stages, by id or name; alone or in a list."""
    references = value if isinstance(value, list) else [value]
    for reference in references:
        if isinstance(reference, bool) or not isinstance(reference, int | str):
            raise ValueError(f"expected ids or names of stages, got {value!r}")
    return references


def _seconds(value: Any) -> float:
    seconds: float = parse("float", value)
    if seconds <= 0:
        raise ValueError(f"must be above 0, got {seconds:g}")
    return seconds


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, got {value!r}")
    return value


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "kind": _kind,
    "model": _text,
    "entry": _flag,
    "outputs": _texts,
    "sources": _references,
    "async_chunk": _flag,
    "input_timeout_s": _seconds,
    "prompt_template": _text,
    "devices": parse_devices,
    "num_replicas": _replicas,
    "env": _environment,
    "default_sampling_params": _mapping,
}
