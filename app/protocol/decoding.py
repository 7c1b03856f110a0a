"""Request bodies: one strict pass over the JSON, and msgspec's complaints turned into OpenAI's error object."""

from __future__ import annotations

import json
import re
from typing import Any, Generic, TypeVar

import msgspec

from app.protocol.errors import ApiError, invalid

T = TypeVar("T")

_MAX_DEPTH = 8
_MISSING = re.compile(r"missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`(?P<bound>[^`,]*)(?:, got `(?P<got>[^`]+)`)?$")

_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}


def refuse_repeated_keys(body: bytes) -> None:
    """For bodies that no engine looks at: of two equal keys a decoder would take the last in silence.

    Raises:
        ApiError: 400; an object in `body` has a key twice, or what a decoder has passed over is no JSON.
    """
    try:
        json.loads(body, object_pairs_hook=_unique, parse_int=len)  # long integers would be refused, or take long
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _no_json(error) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise ApiError(400, f"The request body has the key {name[:100]!r} twice.", code="invalid_json")
        members[name] = value
    return members


def check_arguments(value: Any, param: str, depth: int = 0) -> None:
    """Arguments for a model's own call: none are deeper or larger, and what goes to the replica has to be writable.

    Raises:
        ApiError: 400, nested too deeply, or an integer of more than 64 bits.
    """
    if depth > _MAX_DEPTH:
        raise invalid(param.partition(".")[0], f"is nested more than {_MAX_DEPTH} levels deep")
    match value:
        case int() if not -(2**63) <= value < 2**64:
            raise invalid(param, "is an integer of more than 64 bits")
        case dict():
            for name, member in value.items():
                check_arguments(member, f"{param}.{name}", depth + 1)
        case list():
            for position, item in enumerate(value):
                check_arguments(item, f"{param}[{position}]", depth + 1)


class BodyDecoder(Generic[T]):
    """Decodes one kind of request body; made once per route."""

    def __init__(self, model: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(model)

    def decode(self, body: bytes) -> T:
        """The body as the struct.

        Raises:
            ApiError: 400; `param` is the path of the field at fault, None when the body is not JSON at all.
        """
        if not body.strip():
            raise ApiError(400, "The request body is empty; it must be a JSON object.", code="invalid_json")
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise invalid_field(error) from None
        except RecursionError:
            raise _too_deep() from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _no_json(error) from None


def _too_deep() -> ApiError:
    return ApiError(400, "The request body is nested too deeply.", code="invalid_json")


def _no_json(error: Exception) -> ApiError:
    return ApiError(400, f"The request body is not valid JSON: {error}.", code="invalid_json")


def invalid_field(error: msgspec.ValidationError) -> ApiError:
    """msgspec's ValidationError as a 400 that names the field as a path, such as messages[0].role."""
    problem, path = _split(str(error))
    if missing := _MISSING.search(problem):
        param = _join(path, missing[1])
        return ApiError(400, f"{param} is required.", param=param, code="missing_required_parameter")
    if unknown := _UNKNOWN.search(problem):
        param = _join(path, unknown[1])
        return ApiError(400, f"{param} is not a field of this request.", param=param, code="unknown_parameter")
    return ApiError(
        400, f"{path or 'The request body'}: {_in_words(problem)}.", param=path or None, code="invalid_value"
    )


def _split(text: str) -> tuple[str, str]:
    """msgspec writes "<problem> - at `$.a[0].b`"; the path comes back as a[0].b."""
    problem, _, path = text.partition(" - at `")
    return problem, path.rstrip("`").removeprefix("$").removeprefix(".")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _in_words(problem: str) -> str:
    expected = _EXPECTED.match(problem)
    if not expected:
        return problem[:1].lower() + problem[1:]
    types = " or ".join(_WORDS.get(name, name) for name in expected["types"].split(" | "))
    got = f", got {_WORDS.get(expected['got'], expected['got'])}" if expected["got"] else ""
    return f"must be {types}{expected['bound']}{got}"
