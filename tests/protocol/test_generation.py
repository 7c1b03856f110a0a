from __future__ import annotations

import json

import msgspec
import pytest

from app.cluster.messages import Delta, Finish, Usage
from app.protocol.generation import GenerationRequest, Identity, Tally, joined, members


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (None, "never"),
        ({}, "never"),
        ({"include_usage": False, "continuous_usage_stats": True}, "never"),
        ({"include_usage": True}, "last"),
        ({"include_usage": True, "continuous_usage_stats": True}, "always"),
    ],
)
def test_where_a_stream_carries_usage(options: object, mode: str) -> None:
    request = msgspec.json.decode(json.dumps({"stream_options": options, "top_p": 1}), type=GenerationRequest)
    assert request.usage_mode == mode


def test_deltas_count_until_the_engine_reports() -> None:
    tally = Tally()
    for event in (Delta(0, "a", 2), Delta(1, "", 1), Finish(0, "stop")):
        tally.count(event)
    assert json.loads(tally.encode()) == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}
    tally.count(Usage(7, 4, b'{"prompt_tokens_details":{"cached_tokens":5}}'))
    tally.count(Delta(0, "b", 1))
    assert json.loads(tally.encode()) == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 5},
    }


def test_an_identity_is_escaped() -> None:
    opening = Identity('i"d', 1, "mö\\del").opening("k")
    assert json.loads(opening + b'"choices":[]}') == {
        "id": 'i"d',
        "object": "k",
        "created": 1,
        "model": "mö\\del",
        "choices": [],
    }


def test_members_of_objects_can_be_joined() -> None:
    assert joined(members(b"{}"), members(b' {"a": 1} '), members(b""), members(b'{"b":{}}')) == b'"a": 1,"b":{}'
