"""Ids of responses: they name the engine that holds the response, so that every API worker finds it."""

from __future__ import annotations

import re

from app.protocol.errors import ApiError

_PREFIX = "resp_"
_ID = re.compile(_PREFIX + r"([0-9a-f]{8})[0-9a-f]{32}")


def new_id(instance: str, unique: str) -> str:
    """The id of a response held by `instance` (eight hexadecimal digits); `unique` has 32 of them."""
    return f"{_PREFIX}{instance}{unique}"


def instance_of(response_id: str, param: str = "response_id") -> str:
    """The engine that holds the response.

    Raises:
        ApiError: 404, it is no id of a response of this server; `param` names the field it came in.
    """
    match = _ID.fullmatch(response_id)
    if match is None:
        raise unknown_response(response_id, param)
    return match[1]


def unknown_response(response_id: str, param: str) -> ApiError:
    """404: it was never there, has been forgotten, or the replica that held it is gone."""
    message = f"There is no response {response_id[:100]!r} here; replicas keep the latest ones until they restart."
    return ApiError(404, message, param=param, code="response_not_found")
