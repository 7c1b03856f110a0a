"""vLLM's stream text, read without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.events import ResponseReader


def read(*chunks: dict[str, Any] | str) -> list[m.AnyEvent]:
    events: list[m.AnyEvent] = []
    reader = ResponseReader(events.append, prompt="messages")
    for chunk in chunks:
        text = chunk if isinstance(chunk, str) else json.dumps(chunk)
        reader.take_event(f"data: {text}\n\n")
    return events


def chunk(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "x", "object": "o", "created": 1, "model": "m", "choices": list(choices)} | fields


def test_role_chunk_and_done_say_nothing() -> None:
    assert read(chunk({"index": 0, "delta": {"role": "assistant", "content": ""}}), "[DONE]") == []


def test_prompt_ids_of_the_role_chunk_are_kept() -> None:
    role = chunk({"index": 0, "delta": {"role": "assistant", "content": ""}}, prompt_token_ids=[1])
    assert read(role) == [m.Extra(b'{"prompt_token_ids":[1]}')]


def test_text_and_finish_in_one_chunk() -> None:
    choice = {"index": 1, "delta": {"content": "a", "reasoning": None}, "finish_reason": "stop", "stop_reason": "end"}
    assert read(chunk(choice)) == [m.Chunk(1, b'{"delta":{"content":"a"}}'), m.Finish(1, "stop", b'"end"')]


def test_finish_without_text() -> None:
    assert read(chunk({"index": 0, "delta": {}, "finish_reason": "stop"})) == [m.Finish(0, "stop")]


def test_continuous_usage_sums_the_choices() -> None:
    one = chunk({"index": 0, "text": "a"}, usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4})
    two = chunk({"index": 1, "text": "b"}, usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    usages = [event for event in read(one, two) if isinstance(event, m.Usage)]
    assert usages == [m.Usage(3, 1), m.Usage(3, 3)]


def test_usage_details_are_kept_without_nulls() -> None:
    details = {"cached_tokens": 2, "created_cache_tokens": None}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, "prompt_tokens_details": details}
    assert read(chunk(usage=usage)) == [m.Usage(3, 1, b'{"prompt_tokens_details":{"cached_tokens":2}}')]


def test_error_in_the_stream_is_raised() -> None:
    with pytest.raises(EngineError) as caught:
        read({"error": {"message": "boom", "type": "InternalServerError", "code": 500, "param": None}})
    assert caught.value.failed == m.Failed(500, "boom", "server_error")


def test_message_of_a_whole_answer_keeps_its_null_content() -> None:
    events: list[m.AnyEvent] = []
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    ResponseReader(events.append, prompt="messages").take_response(chunk(choice, usage=usage))
    assert isinstance(events[0], m.Chunk)
    assert json.loads(events[0].fields)["message"] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert events[1:] == [m.Finish(0, "tool_calls"), m.Usage(1, 2)]
