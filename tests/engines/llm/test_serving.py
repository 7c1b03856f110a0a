"""Answers: the fast path equals the full path, and both say what OpenAI's fields promise."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm import arguments
from app.engines.llm.chat import ChatServing
from app.engines.llm.completion import CompletionServing
from app.engines.llm.engine import LlmEngine
from app.engines.llm.service import Service
from app.settings.schema import MediaConfig
from tests.engines.llm.conftest import serving_of, tiny_stage
from tests.engines.llm.recorder import Json, Recorder, recorder, refusal, run, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "flag", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "switch", "parameters": SCHEMA}}

PLAIN_CASES: dict[str, Json] = {
    "greedy": {"temperature": 0, "max_tokens": 24},
    "seeded": {"temperature": 1, "seed": 7, "max_tokens": 24},
    "two choices": {"temperature": 1, "seed": 3, "n": 2, "max_tokens": 12},
    "stop string": {"temperature": 0, "max_tokens": 64, "logit_bias": {"33": 100}, "stop": ["BB"]},
    "stop kept": {
        "temperature": 0,
        "max_tokens": 64,
        "logit_bias": {"33": 100},
        "stop": ["BB"],
        "include_stop_str_in_output": True,
    },
    "stop token": {"temperature": 0, "max_tokens": 64, "logit_bias": {"33": 100}, "stop_token_ids": [33]},
    "logit bias": {"temperature": 0, "max_tokens": 5, "logit_bias": {"65": 100}},
    "penalties": {"temperature": 0, "max_tokens": 24, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    "sampling": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1, "max_tokens": 24},
    "end of text": {"temperature": 0, "max_tokens": 9, "logit_bias": {"256": 100}},
    "ignored end": {"temperature": 0, "max_tokens": 9, "logit_bias": {"256": 50}, "ignore_eos": True, "min_tokens": 9},
    "json schema": {"temperature": 0, "max_tokens": 60, "response_format": JSON_SCHEMA},
    "json object": {"temperature": 0, "max_tokens": 40, "response_format": {"type": "json_object"}},
    "unlimited": {"temperature": 0, "truncate_prompt_tokens": 8, "stop_token_ids": list(range(0, 256, 3))},
}
CHAT_CASES = PLAIN_CASES | {
    "max completion tokens": {"temperature": 0, "max_completion_tokens": 3},
    "tools unused": {"temperature": 0, "max_tokens": 12, "tools": [TOOL], "tool_choice": "none"},
    "an answer that was spoken": {
        "temperature": 0,
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "audio": {"id": "audio-1"}},
            {"role": "user", "content": "bye"},
        ],
    },
}
COMPLETION_CASES = PLAIN_CASES | {
    "several prompts": {"temperature": 0, "max_tokens": 6, "prompt": ["one", "two", "three"], "n": 1},
    "prompts and choices": {"temperature": 1, "seed": 5, "max_tokens": 6, "prompt": ["one", "two"], "n": 2},
    "token ids": {"temperature": 0, "max_tokens": 6, "prompt": [72, 105]},
}


def shape(request: Recorder) -> set[type[m.AnyEvent]]:
    return {type(event) for event in request.events}


async def both_ways(engine: LlmEngine, kind: str, body: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = await run(engine, kind, body)
    with monkeypatch.context() as patch:
        serving = ChatServing if kind == "chat" else CompletionServing
        patch.setattr(serving, "is_plain", lambda *_: False)
        full = await run(engine, kind, body)
    assert m.Delta in shape(fast)
    assert m.Chunk not in shape(fast)
    assert m.Delta not in shape(full)
    # The second run finds the prompt in the prefix cache; how much of it is not what is compared here.
    for answer in (answers := [fast.answer(), full.answer()]):
        answer["usage"].pop("prompt_tokens_details", None)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CHAT_CASES)
async def test_chat_fast_equals_full(
    engine: LlmEngine, hello: Any, case: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await both_ways(engine, "chat", {"messages": hello, "stream": stream} | CHAT_CASES[case], monkeypatch)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", COMPLETION_CASES)
async def test_completion_fast_equals_full(
    engine: LlmEngine, case: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_of(engine)._completion, "enable_prompt_tokens_details", False)
    await both_ways(engine, "completion", {"prompt": "hello", "stream": stream} | COMPLETION_CASES[case], monkeypatch)


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_streamed_equals_whole(engine: LlmEngine, hello: Any, kind: str) -> None:
    body = {"messages": hello} if kind == "chat" else {"prompt": "hello"}
    body |= {"temperature": 1, "seed": 11, "n": 3, "max_tokens": 20}
    whole = (await run(engine, kind, body)).answer()
    streamed = (await run(engine, kind, body | {"stream": True})).answer()
    assert streamed["choices"] == whole["choices"]
    assert streamed["extra"] == whole["extra"]


async def test_counts_and_reasons(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "max_tokens": 6, "n": 1, "logit_bias": {"65": 100}, "seed": 1}
    answer = (await run(engine, "chat", body)).answer()
    assert answer["choices"] == {0: {"text": "b" * 6, "finish": [("length", None)]}}
    tokens = 3 + len("user\nhello" + "\n" + "assistant\n")  # one for each special token and each byte
    assert answer["usage"] == {
        "prompt": tokens,
        "completion": 6,
        "prompt_tokens_details": answer["usage"]["prompt_tokens_details"],
    }
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= tokens


async def test_stop_string_ends_and_is_named(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "logit_bias": {"65": 100}, "stop": ["bbbb"], "max_tokens": 50}
    answer = (await run(engine, "chat", body | {"stream": True})).answer()
    assert answer["choices"][0] == {"text": "", "finish": [("stop", "bbbb")]}
    assert answer["usage"]["completion"] == 4


async def test_usage_before_every_delta_when_asked(engine: LlmEngine, hello: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": hello, "temperature": 0, "max_tokens": 4, "ignore_eos": True, "stream": True}
    plain = await run(engine, "chat", body | {"stream_options": options})
    full = await run(engine, "chat", body | {"stream_options": options, "return_token_ids": True})
    for request in (plain, full):
        counts = [event.completion_tokens for event in request.events if isinstance(event, m.Usage)]
        assert counts[-1] == 4
        assert counts == sorted(counts)
        assert len(counts) >= len([event for event in request.events if isinstance(event, (m.Delta, m.Chunk))])


async def test_json_schema_is_obeyed(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "max_tokens": 80, "response_format": JSON_SCHEMA}
    answer = (await run(engine, "chat", body)).answer()
    assert set(json.loads(answer["choices"][0]["text"])) == {"a"}


async def test_chat_logprobs(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    whole = (await run(engine, "chat", body)).answer()["choices"][0]
    streamed = (await run(engine, "chat", body | {"stream": True})).answer()["choices"][0]
    assert [len(token["top_logprobs"]) for token in whole["logprobs"][0]["content"]] == [2, 2, 2]
    assert [token for part in streamed["logprobs"] for token in part["content"]] == whole["logprobs"][0]["content"]
    assert streamed["text"] == whole["text"]


async def test_completion_echo_with_logprobs(engine: LlmEngine) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 2, "echo": True, "logprobs": 1}
    choice = (await run(engine, "completion", body)).answer()["choices"][0]
    assert choice["text"].startswith("hello")
    assert len(choice["logprobs"][0]["tokens"]) == 7


async def test_required_tool_is_called(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "max_tokens": 200, "tools": [TOOL], "tool_choice": "required"}
    whole = (await run(engine, "chat", body)).answer()["choices"][0]
    assert whole["finish"] == [("tool_calls", None)]
    call = whole["tool_calls"][0][0]["function"]
    assert call["name"] == "switch"
    assert call["arguments"]
    streamed = (await run(engine, "chat", body | {"stream": True})).answer()["choices"][0]
    parts = [call["function"] for calls in streamed["tool_calls"] for call in calls]
    assert {part["name"] for part in parts if part.get("name")} == {"switch"}
    assert "".join(part.get("arguments") or "" for part in parts)
    assert streamed["finish"] == [("tool_calls", None)]


async def test_beam_search(engine: LlmEngine) -> None:
    body = {"prompt": "hello", "n": 2, "use_beam_search": True, "max_tokens": 3, "temperature": 1}
    request = await run(engine, "completion", body)
    assert sorted(request.answer()["choices"]) == [0, 1]


async def test_accepted_comes_before_the_first_token(engine: LlmEngine, hello: Any) -> None:
    request = await run(engine, "chat", {"messages": hello, "max_tokens": 2, "stream": True})
    assert request.events[0] == m.Accepted()
    assert request.events.count(m.Accepted()) == 1


async def test_full_path_waits_for_credit_and_merges(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
    request = recorder("chat", body | {"return_token_ids": True})
    request.funded.clear()
    task = asyncio.create_task(engine.run(request))
    await until(lambda: bool(request.events))
    await until(lambda: engine.load().running + engine.load().waiting == 0)  # vLLM finishes, and nobody reads
    before = len(request.events)
    request.funded.set()
    await task
    assert len(request.events) - before < 8
    assert request.answer()["usage"]["completion"] == 200


async def test_reasoning_is_told_apart(engine: LlmEngine, hello: Any) -> None:
    frontend = engine._process.frontend
    assert frontend is not None
    args = arguments.parse(tiny_stage(), ["tiny"], {})
    args.structured_outputs_config.reasoning_parser = "qwen3"
    service = await Service.create(frontend, args, "00000000", MediaConfig())
    answers = []
    for stream in (False, True):
        body = {"messages": hello, "temperature": 0, "max_tokens": 8, "logit_bias": {"65": 100}, "stream": stream}
        request = recorder("chat", body)
        await service.answer(request)
        answers.append(request.answer())
    for answer in answers:
        assert "".join(answer["choices"][0].pop("reasoning")) == "b" * 8
        assert answer["choices"][0] == {"text": "", "finish": [("length", None)]}
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}


async def test_unknown_call(engine: LlmEngine) -> None:
    with pytest.raises(EngineError, match="no method 'dance'"):
        await engine.call("dance", b"{}")


async def test_unknown_kind(engine: LlmEngine) -> None:
    assert (await refusal(engine, "image", {})).status == 400
