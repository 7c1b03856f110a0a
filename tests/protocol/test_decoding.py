from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from app.protocol.decoding import BodyDecoder, refuse_repeated_keys
from app.protocol.errors import ApiError, ErrorObject


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str | list[dict[str, str]] = ""


class Body(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[Message]
    n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float = 1.0


decoder = BodyDecoder(Body)


def refused(body: bytes) -> ErrorObject:
    with pytest.raises(ApiError) as caught:
        decoder.decode(body)
    assert caught.value.status == 400
    return caught.value.body.error


def test_a_good_body() -> None:
    assert decoder.decode(b'{"messages":[{"role":"user"}],"n":2}') == Body([Message("user")], 2)


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        (b"{}", "messages", "missing_required_parameter", "messages is required."),
        (
            b'{"messages":[{}]}',
            "messages[0].role",
            "missing_required_parameter",
            "messages[0].role is required.",
        ),
        (
            b'{"messages":[{"role":"user"},{"role":7}]}',
            "messages[1].role",
            "invalid_value",
            "messages[1].role: must be a string, got an integer.",
        ),
        (
            b'{"messages":[{"role":"robot"}]}',
            "messages[0].role",
            "invalid_value",
            "messages[0].role: invalid enum value 'robot'.",
        ),
        (
            b'{"messages":[],"n":0}',
            "n",
            "invalid_value",
            "n: must be an integer >= 1.",
        ),
        (
            b'{"messages":[],"n":true}',
            "n",
            "invalid_value",
            "n: must be an integer or null, got true or false.",
        ),
        (
            b'{"messages":null}',
            "messages",
            "invalid_value",
            "messages: must be an array, got null.",
        ),
        (
            b'{"messages":[],"temprature":1}',
            "temprature",
            "unknown_parameter",
            "temprature is not a field of this request.",
        ),
        (
            b'{"messages":[{"role":"user","name":"x"}]}',
            "messages[0].name",
            "unknown_parameter",
            "messages[0].name is not a field of this request.",
        ),
    ],
)
def test_the_field_at_fault_is_named_in_words(body: bytes, param: str, code: str, message: str) -> None:
    assert refused(body) == ErrorObject(message, "invalid_request_error", param, code)


@pytest.mark.parametrize(
    "body", [b"", b" \n\t", b"{", b"{]", b'{"n": NaN}', b'{"messages": [{"role": "\xff"}]}', b"\xff"]
)
def test_what_is_not_json_has_no_param(body: bytes) -> None:
    error = refused(body)
    assert (error.param, error.code) == (None, "invalid_json")


def test_a_body_that_is_no_object() -> None:
    assert refused(b"[]").message == "The request body: must be an object, got an array."


@pytest.mark.parametrize("passed_over", [b'"\xff"', b'{"b":1,"b":2}', b"[" * 100_000 + b"]" * 100_000])
def test_what_a_decoder_has_passed_over_is_judged(passed_over: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        refuse_repeated_keys(b'{"a":%b}' % passed_over)
    assert (caught.value.status, caught.value.body.error.code) == (400, "invalid_json")


def test_the_length_of_integers_is_not_judged() -> None:
    refuse_repeated_keys(b'{"a":%b}' % (b"9" * 5000))
