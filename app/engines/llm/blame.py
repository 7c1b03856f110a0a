"""Finds the field of a request that an error of vLLM's is about: vLLM names its own fields, or one in words only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from app.cluster.messages import Failed
from app.engines.llm import bodies
from app.engines.llm.bodies import Json

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_PLAIN_WORDS = frozenset({"model", "stream", "prompt", "input", "messages", "text", "user"})
"""Names of fields that messages use in their usual sense."""
_INT64 = range(-(1 << 63), 1 << 64)


def blamed(failed: Failed, body: bytes, *, prompt: str, names: Mapping[str, str]) -> Failed:
    """`failed` with the client's field as its param; `names` gives the client's words for vLLM's.

    Nothing changes for errors that are not about the value of a field.
    """
    param = failed.param
    if failed.status not in (400, 404) or param is None or failed.code is not None:
        return failed
    data = bodies.decode(body)
    if names.get(param) in data:
        param = names[param]
    elif param == prompt:
        param = _named_in(failed.message, data) or prompt
    return msgspec.structs.replace(failed, param=param)


def _named_in(message: str, data: Json) -> str | None:
    if "can't serialize ints" in message:
        return next((name for name, value in data.items() if _has_huge(value)), None)
    candidates = data.keys() - _PLAIN_WORDS
    words = (name for word in _WORD.findall(message) for name in (word, word + "s"))
    return next((name for name in words if name in candidates), None)


def _has_huge(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(_has_huge(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value not in _INT64
