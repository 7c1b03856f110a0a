"""The table of vLLM's tasks on a real engine: order of events, aborts, credit, and whose field is blamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from tests.engines.llm.recorder import Recorder, recorder, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = {"input": "hello", "max_output_tokens": 900, "ignore_eos": True}
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("responses", {"input": "hello", "max_output_tokens": 2}),
    ("messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
    ("count_tokens", {"messages": [{"role": "user", "content": "hello"}]}),
    ("chat_batch", {"messages": [[{"role": "user", "content": "hello"}]] * 2, "max_tokens": 2}),
    ("tokenize", {"prompt": "hello"}),
    ("detokenize", {"tokens": [1, 2]}),
    ("generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [1, 2]}),
]


async def serve(engine: LlmEngine, kind: str, body: dict[str, Any]) -> list[m.AnyEvent]:
    request = recorder(kind, body)
    async with asyncio.timeout(60):
        await engine.run(request)
    return request.events


async def refused(engine: LlmEngine, kind: str, body: dict[str, Any]) -> m.Failed:
    request = recorder(kind, body)
    with pytest.raises(EngineError) as caught:
        await engine.run(request)
    assert request.events == [], "nothing may be told before the refusal"
    return caught.value.failed


def document(events: list[m.AnyEvent]) -> Any:
    (found,) = [json.loads(event.body) for event in events if isinstance(event, m.Document)]
    return found


@pytest.mark.parametrize(("kind", "body"), TASKS)
async def test_a_document(engine: LlmEngine, kind: str, body: dict[str, Any]) -> None:
    events = await serve(engine, kind, body)
    assert [events[0], events[-1]] == [m.Accepted(), m.Done()]
    assert isinstance(document(events), dict)
    assert len([event for event in events if isinstance(event, m.Accepted | m.Document)]) == 2


@pytest.mark.parametrize(("kind", "body"), TASKS[:2])
async def test_a_stream_of_named_events_with_the_usage(engine: LlmEngine, kind: str, body: dict[str, Any]) -> None:
    events = await serve(engine, kind, body | {"stream": True})
    assert events[0] == m.Accepted()
    named = [event for event in events if isinstance(event, m.Named)]
    assert [json.loads(event.data)["type"] for event in named] == [event.name for event in named]
    (usage,) = [event for event in events if isinstance(event, m.Usage)]
    assert usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_aborts_in_the_engine(engine: LlmEngine, stream: bool) -> None:
    request = recorder("responses", LONG | {"stream": stream})
    task = asyncio.create_task(engine.run(request))
    await until(lambda: engine.load().running > 0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    await until(lambda: engine.load().running + engine.load().waiting == 0)


async def test_a_stream_waits_for_credit(engine: LlmEngine) -> None:
    request = recorder("responses", LONG | {"stream": True, "max_output_tokens": 200})
    request.funded.clear()
    task = asyncio.create_task(engine.run(request))
    await until(lambda: bool(request.events))
    await until(lambda: engine.load().running + engine.load().waiting == 0)
    assert len(request.events) < 8
    request.funded.set()
    async with asyncio.timeout(30):
        await task
    assert request.events[-1] == m.Done()


async def test_background_work_outlives_its_request(engine: LlmEngine) -> None:
    response = document(await serve(engine, "responses", LONG | {"background": True}))
    assert response["status"] == "queued"
    await until(lambda: engine.load().running > 0)
    reference = {"response_id": response["id"]}
    cancelled = document(await run_raw(engine, "cancel_response", reference))
    assert cancelled["status"] == "cancelled"
    await until(lambda: engine.load().running + engine.load().waiting == 0)
    assert document(await run_raw(engine, "retrieve_response", reference))["status"] == "cancelled"


async def run_raw(engine: LlmEngine, kind: str, body: dict[str, Any]) -> list[m.AnyEvent]:
    request = Recorder(kind, json.dumps(body).encode())
    await engine.run(request)
    return request.events


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        ("responses", {"max_output_tokens": -1}, "max_output_tokens"),
        ("responses", {"previous_response_id": "resp_none"}, "previous_response_id"),
        ("responses", {"input": "x" * 2000}, "input"),
        ("responses", {"input": ""}, "input"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools"),
        ("responses", {"request_id": "mine"}, "request_id"),
        ("responses", {"background": True, "store": False}, "background"),
        ("messages", {"stop_sequences": [""]}, "stop_sequences"),
        ("messages", {"top_k": 10**30}, "top_k"),
        ("messages", {"max_tokens": 10**6}, "max_tokens"),
        ("chat_batch", {"n": 2}, "n"),
        ("detokenize", {"tokens": [10**11]}, "tokens"),
        ("generative_scoring", {"label_token_ids": [-1]}, "label_token_ids"),
    ],
)
async def test_the_clients_field_is_named(engine: LlmEngine, kind: str, change: dict[str, Any], param: str) -> None:
    failed = await refused(engine, kind, dict(TASKS)[kind] | change)
    assert failed.status in (400, 404)
    assert failed.param == param
    assert engine._process.frontend is not None
    assert engine._process.frontend.get_num_unfinished_requests() == 0, "what is refused must not go on counting"


async def test_null_counts_as_left_out(engine: LlmEngine) -> None:
    nulls = dict.fromkeys(("background", "store", "temperature", "service_tier", "truncation", "tools"))
    events = await serve(engine, "responses", TASKS[0][1] | nulls)
    assert document(events)["status"] in ("completed", "incomplete")


async def test_a_task_of_other_models(engine: LlmEngine) -> None:
    assert (await refused(engine, "embeddings", {"input": "x"})).status == 400
