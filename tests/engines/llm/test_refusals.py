"""Requests that must be refused: the status, the parameter, and words that help."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.engines.llm.engine import LlmEngine
from tests.engines.llm.conftest import serving_of
from tests.engines.llm.recorder import Json, refusal, run

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES = [{"role": "user", "content": "hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

CHAT: dict[str, tuple[Json, int, str | None, str]] = {
    "no messages": ({}, 400, "messages", "Field required"),
    "message without role": ({"messages": [{"content": "x"}]}, 400, "messages[0].role", "required"),
    "content is a number": ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "valid string"),
    "part without text": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, None, ""),
    "messages is text": ({"messages": "hello"}, 400, "messages", "list"),
    "temperature is text": ({"messages": MESSAGES, "temperature": "hot"}, 400, "temperature", "number"),
    "temperature below zero": ({"messages": MESSAGES, "temperature": -1}, 400, "temperature", "non-negative"),
    "top_p above one": ({"messages": MESSAGES, "top_p": 2}, 400, "top_p", "(0, 1]"),
    "n is zero": ({"messages": MESSAGES, "n": 0}, 400, "n", "at least 1"),
    "max_tokens is zero": ({"messages": MESSAGES, "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    "unknown field": ({"messages": MESSAGES, "temprature": 1}, 400, "temprature", "did you mean 'temperature'"),
    "unknown stream option": (
        {"messages": MESSAGES, "stream": True, "stream_options": {"include_usge": True}},
        400,
        "stream_options.include_usge",
        "did you mean 'include_usage'",
    ),
    "store": ({"messages": MESSAGES, "store": True}, 400, "store", "not stored"),
    "audio out": ({"messages": MESSAGES, "modalities": ["text", "audio"]}, 400, "modalities", "text only"),
    "sound without words": (
        {"messages": [*MESSAGES, {"role": "assistant", "audio": {"id": "audio-1"}}, *MESSAGES]},
        400,
        "messages[1].audio",
        "transcript",
    ),
    "old functions": ({"messages": MESSAGES, "functions": [{"name": "f"}]}, 400, "functions", "`tools`"),
    "guided_json": ({"messages": MESSAGES, "guided_json": {}}, 400, "guided_json", "response_format"),
    "stream options without stream": (
        {"messages": MESSAGES, "stream_options": {"include_usage": True}},
        400,
        "stream_options",
        "stream=True",
    ),
    "top_logprobs alone": ({"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs", "logprobs"),
    "too many logprobs": (
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 999},
        400,
        "logprobs",
        "max allowed",
    ),
    "empty tools": ({"messages": MESSAGES, "tools": []}, 400, "tools", "empty"),
    "tool choice without tools": ({"messages": MESSAGES, "tool_choice": "auto"}, 400, "tool_choice", "`tools`"),
    "tool without a function": (
        {"messages": MESSAGES, "tools": [{"type": "function"}], "tool_choice": {"function": {"name": "f"}}},
        400,
        None,
        "",
    ),
    "json schema missing": (
        {"messages": MESSAGES, "response_format": {"type": "json_schema"}},
        400,
        "response_format",
        "json_schema",
    ),
    "json schema wrong": (
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
        },
        400,
        None,
        "",
    ),
    "prompt too long": (
        {"messages": [{"role": "user", "content": "x" * 2000}]},
        400,
        "messages",
        "maximum context length",
    ),
    "answer too long": ({"messages": MESSAGES, "max_tokens": 5000}, 400, "max_tokens", "max_model_len"),
    "unknown model": ({"messages": MESSAGES, "model": "other"}, 404, "model", "tiny, tiny-alias"),
    "image for a text model": ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, None, "multimodal"),
    "chat template": ({"messages": MESSAGES, "chat_template": "{{ x }}"}, 400, None, "template"),
    "lone surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, None, ""),
    "wrong role": ({"messages": [{"role": 7, "content": "x"}]}, 400, "messages[0].role", ""),
    "stop is a number": ({"messages": MESSAGES, "stop": 3}, 400, "stop", ""),
    "logit bias key": ({"messages": MESSAGES, "logit_bias": {"x": 1}}, 400, None, ""),
    "logit bias outside": ({"messages": MESSAGES, "logit_bias": {"99999": 1}}, 400, None, "vocab"),
}
COMPLETION: dict[str, tuple[Json, int, str | None, str]] = {
    "no prompt": ({}, 400, "prompt", "prompt"),
    "empty prompt": ({"prompt": ""}, 400, "prompt", "non-empty"),
    "prompt is an object": ({"prompt": {}}, 400, "prompt", ""),
    "token outside": ({"prompt": [99999]}, 400, None, "vocab"),
    "best_of": ({"prompt": "x", "best_of": 3}, 400, "best_of", "cannot be honoured"),
    "suffix": ({"prompt": "x", "suffix": "y"}, 400, "suffix", "suffix"),
    "prompt too long": ({"prompt": "x" * 2000}, 400, "prompt", "maximum context length"),
    "unknown model": ({"prompt": "x", "model": "other"}, 404, "model", "tiny, tiny-alias"),
    "beam search stream": ({"prompt": "x", "use_beam_search": True, "stream": True}, 400, None, "beam"),
    "second prompt too long": ({"prompt": ["x", "y" * 2000], "stream": True}, 400, "prompt", "maximum context length"),
}


@pytest.mark.parametrize("case", CHAT)
async def test_chat(engine: LlmEngine, case: str) -> None:
    await check(engine, "chat", *CHAT[case])


@pytest.mark.parametrize("case", COMPLETION)
async def test_completion(engine: LlmEngine, case: str) -> None:
    await check(engine, "completion", *COMPLETION[case])


async def check(engine: LlmEngine, kind: str, body: Json, status: int, param: str | None, words: str) -> None:
    failed = await refusal(engine, kind, body)
    assert failed.status == status, failed
    if param is not None:
        assert failed.param == param, failed
    assert words in failed.message
    assert failed.type == ("not_found_error" if status == 404 else "invalid_request_error")
    assert "\n" not in failed.message.strip() or words == ""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": "tiny", "model": "tiny"}', "'model' is there twice"),
        (b'{"temperature": NaN}', "NaN is not a JSON value"),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"user": "\xff"}', "not UTF-8: byte 10"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
async def test_not_json(engine: LlmEngine, body: bytes, words: str) -> None:
    failed = await refusal(engine, "chat", body)
    assert (failed.status, failed.code) == (400, "invalid_json")
    assert words in failed.message


async def test_codes(engine: LlmEngine) -> None:
    too_long = await refusal(engine, "chat", {"messages": [{"role": "user", "content": "x" * 2000}]})
    assert too_long.code == "context_length_exceeded"
    unknown = await refusal(engine, "chat", {"messages": MESSAGES, "model": "other"})
    assert unknown.code == "model_not_found"


async def test_auto_tools_without_parser_say_which_flag(engine: LlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = serving_of(engine)._chat.online_renderer
    monkeypatch.setattr(renderer, "parser", None)
    monkeypatch.setattr(renderer, "enable_auto_tools", False)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    failed = await refusal(engine, "chat", {"messages": MESSAGES, "tools": [tool]})
    assert failed.status == 400
    assert "--enable-auto-tool-choice" in failed.message


async def test_fields_without_effect_are_taken(engine: LlmEngine) -> None:
    body: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prediction": None,
        "verbosity": None,
        "audio": None,
        "modalities": ["text"],
        "parallel_tool_calls": True,
    }
    request = await run(engine, "chat", {"messages": MESSAGES, "max_tokens": 1} | body)
    assert request.answer()["usage"]["completion"] == 1


async def test_the_aliases_are_served(engine: LlmEngine) -> None:
    for name in ("tiny", "tiny-alias", None):
        body = json.dumps({"messages": MESSAGES, "max_tokens": 1, "model": name}).encode()
        assert (await run(engine, "chat", body)).answer()["choices"].keys() == {0}
