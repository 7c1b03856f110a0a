"""Bodies that nobody would write, made from what /openapi.json says of a route."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import strategies as st

from tests.compat.negative import Json, Route

_NUMBERS = st.integers(-4, 4) | st.sampled_from([2**31, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -1e308, 1e-320])
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text(max_size=12)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def documented(document: Json) -> dict[str, Json]:
    """The operation of every POST route with a body."""
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    return {path: operation for path, operation in posts.items() if "requestBody" in operation}


def example(operation: Json) -> Json:
    """The documented example, for the model of the tests, and short."""
    content = operation["requestBody"]["content"]["application/json"]
    given: Json = content["example"]
    return given | {name: "tiny" for name in ("model",) if name in given}


def bodies(operation: Json, route: Route | None) -> st.SearchStrategy[Json]:
    """Its example, or the valid body of `route`, with some fields replaced by anything."""
    properties = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    known = set(properties) | (set(route.required) | set(route.optional) if route else set())
    valid = example(operation) | (route.valid if route else {})
    changes = st.dictionaries(st.sampled_from(sorted(known)), _VALUES, max_size=3)
    return st.builds(lambda change: valid | change, changes)


def fault(answer: httpx.Response) -> str | None:
    """What is wrong with an answer to any body at all: a fault of ours, or an error that is not OpenAI's."""
    if answer.status_code >= 500 or '"server_error"' in answer.text:
        return f"{answer.status_code} {answer.text[:300]}"
    if answer.status_code >= 400:
        error: dict[str, Any] = json.loads(answer.text).get("error", {})
        if set(error) != {"message", "type", "param", "code"}:
            return f"{answer.status_code} {answer.text[:300]}"
    return None
