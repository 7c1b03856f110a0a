"""What every POST route has to refuse: a table made of one valid body a route and the kinds of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

Json = dict[str, Any]

LIMIT = 200_000
"""The server's --max-body-bytes."""

WRONG: dict[str, list[Any]] = {
    "text": [5, 1.5, {}, {"a": 1}],
    "texts": [5, {"a": 1}, [{"a": 1}], [None]],
    "list": ["x", 5, {"a": 1}, [5], [None]],
    "tokens": ["x", 5, {"a": 1}, ["x"], [-1], [1.5], [10**30], [None]],
    "count": ["x", -1, 1.5, 10**30, [], {}],
    "limit": ["x", -1, 1.5, [], {}],
    "number": ["x", [], {}, -10.0, 10**400],
    "integer": ["x", 1.5, 10**40, [], {}],
    "flag": ["x", 7, [], {}],
    "object": ["x", 5, [1]],
    "choice": ["no such value", 5, [], {}],
}
"""By kind of field: wrong types, negative, huge, unknown."""

EMPTY: dict[str, list[Any]] = {"text": [""], "texts": ["", []], "list": [[]], "tokens": [[]]}


class Route(msgspec.Struct):
    """`required` and `optional` give the kind of each field. `empty`: which required fields must hold something.

    `strict`: the API worker itself judges the body, and there is no `model`.
    """

    path: str
    valid: Json
    required: dict[str, str]
    optional: dict[str, str] = {}
    empty: tuple[str, ...] = ()
    strict: bool = False


class Case(NamedTuple):
    name: str
    path: str
    content: bytes
    param: str | None = None
    status: tuple[int, ...] = (400,)
    media_type: str | None = "application/json"


def cases(route: Route) -> Iterator[Case]:
    """Every case of one route."""
    yield from _field_cases(route)
    yield from _body_cases(route)


def _field_cases(route: Route) -> Iterator[Case]:
    def case(name: str, field: str, value: Any) -> Case:
        return Case(name, route.path, json.dumps(route.valid | {field: value}).encode(), field)

    for field, kind in route.required.items():
        rest = {name: value for name, value in route.valid.items() if name != field}
        yield Case(f"{field} missing", route.path, json.dumps(rest).encode(), field)
        yield case(f"{field} null", field, None)
        if field in route.empty:
            for value in EMPTY[kind]:
                yield case(f"{field} empty: {value!r}", field, value)
    for field, kind in (route.required | route.optional).items():
        for value in WRONG[kind]:
            yield case(f"{field}: {str(value)[:20]}", field, value)
    yield case("unknown field", "no_such_field", 1)
    yield case("blank field name", " ", 1)
    yield case("misspelt field", "modle", "x")
    if not route.strict:
        yield case("model of the wrong type", "model", 5)
        yield Case("unknown model", route.path, json.dumps(route.valid | {"model": "nope"}).encode(), "model", (404,))


def _body_cases(route: Route) -> Iterator[Case]:
    valid = json.dumps(route.valid).encode()
    name = next(iter(route.required)).encode()
    rest = json.dumps({key: value for key, value in route.valid.items() if key.encode() != name}).encode()[1:]

    def body(title: str, content: bytes, status: int = 400, media_type: str | None = "application/json") -> Case:
        return Case(title, route.path, content, None, (status,), media_type)

    def first(value: bytes) -> bytes:
        """A body whose first required field is written like that."""
        return b'{"%b": %b' % (name, value) + (b"}" if rest == b"}" else b", " + rest)

    yield body("empty body", b"")
    yield body("blank body", b" \n")
    yield body("cut off", valid[:-1])
    yield body("something after it", valid + b"{}")
    yield body("array", b"[" + valid + b"]")
    yield body("string", b'"text"')
    yield body("null", b"null")
    yield body("NaN", first(b"NaN"))
    yield body("Infinity", first(b"-Infinity"))
    yield body("a key twice", first(json.dumps(route.valid[name.decode()]).encode())[:-1] + b", " + valid[1:])
    yield body("invalid UTF-8", first(b'"\xff\xfe"'))
    yield body("half a surrogate pair", first(b'"\\ud800"'))
    yield body("gzip", b"\x1f\x8b\x08\x00\x00")
    yield body("over the limit", valid[:-1] + b" " * LIMIT + b"}", 413)
    yield body("text", valid, 415, "text/plain")
    yield body("form", b"a=b", 415, "application/x-www-form-urlencoded")
    yield body("multipart without boundary", valid, 415, "multipart/form-data")
    yield body("no content type", valid, 415, None)
    deep = first(b"[" * 5000 + b"]" * 5000)
    yield Case("very deep", route.path, deep, name.decode() if route.strict else None)


def send(client: httpx.Client, case: Case) -> httpx.Response:
    headers = {} if case.media_type is None else {"Content-Type": case.media_type}
    if case.status != (400,):
        headers["Connection"] = "close"  # a server that has not read a body closes the connection, now or a bit later
    return client.post(case.path, content=case.content, headers=headers)


def problem(case: Case, answer: httpx.Response) -> str | None:
    """What is wrong with the answer to a case."""
    if answer.status_code not in case.status:
        return f"status {answer.status_code}, not {case.status}: {answer.text[:200]}"
    if set(answer.json()) != {"error"} or set(answer.json()["error"]) != {"message", "type", "param", "code"}:
        return f"no OpenAI error: {answer.text[:200]}"
    param = answer.json()["error"]["param"]
    root = None if param is None else param.partition("[")[0].partition(".")[0]
    return None if root == case.param else f"param {param!r}, not {case.param!r}: {answer.text[:200]}"
