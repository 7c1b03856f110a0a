"""What tells one session from another: a name that the client gave, or how the conversation begins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.pipeline.session import session_of


def key(**body: Any) -> bytes:
    return session_of(json.dumps({"model": "m", **body}).encode())


def chat(*turns: str, system: str = "") -> list[dict[str, Any]]:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    return ([{"role": "system", "content": system}] if system else []) + messages


def test_all_turns_of_a_conversation_are_one_session() -> None:
    first = key(messages=chat("hi", system="be kind"))
    assert first
    assert key(messages=chat("hi", "hello", "and?", system="be kind"), temperature=0) == first
    assert key(messages=chat("hi", system="be brief")) != first
    assert key(messages=chat("ho", "hello", "and?", system="be kind")) != first


@pytest.mark.parametrize("field", ["prompt_cache_key", "safety_identifier", "user"])
def test_a_name_is_stronger_than_what_is_said(field: str) -> None:
    assert key(messages=chat("hi"), **{field: "a"}) == key(messages=chat("ho"), **{field: "a"})
    assert key(messages=chat("hi"), **{field: "a"}) != key(messages=chat("hi"), **{field: "b"})
    assert key(messages=chat("hi"), **{field: ""}) == key(messages=chat("hi"))


def test_a_prompt_that_grows_keeps_its_beginning() -> None:
    story = "Once upon a time. " * 200
    assert key(prompt=story) == key(prompt=story + "The end.")
    assert key(prompt=story) != key(prompt="Long ago. " + story)
    assert key(input=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]) == key(
        input=[{"role": "user", "content": "hi"}]
    )
    assert key(input="text") != key(input="another")


@pytest.mark.parametrize(
    "body", [b"", b"\xc1\x00", b"[]", b"{}", b'{"messages": [1]}', b'{"user": 7}', b'{"messages": []}']
)
def test_what_tells_of_no_session(body: bytes) -> None:
    """A body of msgpack, one that the replica will refuse, one with nothing in it."""
    assert session_of(body) == b""
