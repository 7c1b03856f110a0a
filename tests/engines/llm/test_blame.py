"""Whose field an error is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.cluster.messages import Failed
from app.engines.llm.blame import blamed

NAMES = {"stop": "stop_sequences"}


@pytest.mark.parametrize(
    ("message", "param", "body", "expected"),
    [
        ("anything", "stop", {"stop_sequences": [""]}, "stop_sequences"),
        ("anything", "stop", {"stop": [""]}, "stop"),
        ("it has no dimensions=5", "input", {"input": "x", "dimensions": 5}, "dimensions"),
        ("label_token_id -1 is wrong", "input", {"label_token_ids": [-1]}, "label_token_ids"),
        ("your input has a bad text", "input", {"input": "x", "text": {}}, "input"),
        ("can't serialize ints < -2**63", "input", {"input": "x", "a": {"b": [10**30]}}, "a"),
        ("seed is wrong", "temperature", {"seed": 1}, "temperature"),
    ],
)
def test_the_field(message: str, param: str, body: dict[str, Any], expected: str) -> None:
    failed = Failed(400, message, "invalid_request_error", param)
    assert blamed(failed, json.dumps(body).encode(), prompt="input", names=NAMES).param == expected


@pytest.mark.parametrize(
    "failed",
    [
        Failed(500, "seed", "server_error", "input"),
        Failed(400, "seed", "invalid_request_error", None),
        Failed(400, "seed", "invalid_request_error", "input", "context_length_exceeded"),
    ],
)
def test_what_is_not_about_a_value_stays(failed: Failed) -> None:
    assert blamed(failed, b'{"seed": 1}', prompt="input", names=NAMES) == failed
