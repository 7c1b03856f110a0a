from __future__ import annotations

import json

import httpx
import pytest

from app.cluster.messages import Chunk, Delta, Done, Extra, Finish, Usage
from app.protocol.errors import ApiError
from tests.routes.serving import ScriptedOrchestrator, Served, events

URL = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def test_a_whole_answer(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(URL, json={**ASK, "model": "smol"}, headers={"X-Request-Id": "req-1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "chatcmpl-req-1",
        "object": "chat.completion",
        "model": "smol",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello Wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }
    assert served.orchestrator.streams[0].closed.is_set()


async def test_the_body_reaches_the_replica_as_it_came(client: httpx.AsyncClient, served: Served) -> None:
    raw = b'{ "model": "smol",\n "messages": [], "top_k": 1e0, "model": "HuggingFaceTB/SmolLM2" }'
    answer = await client.post(URL, content=raw, headers={"Content-Type": "application/json; charset=utf-8"})
    [(kind, request_id, body, model)] = served.orchestrator.submitted
    assert (kind, body) == ("chat", raw)
    assert model == answer.json()["model"] == "HuggingFaceTB/SmolLM2", "of two equal keys the last one counts"
    assert request_id.startswith(answer.headers["x-request-id"])


async def test_a_request_id_that_is_used_twice_at_a_time_is_two_requests(
    client: httpx.AsyncClient, served: Served
) -> None:
    for _ in range(2):
        await client.post(URL, json=ASK, headers={"X-Request-Id": "same"})
    assert len({request_id for _, request_id, _, _ in served.orchestrator.submitted}) == 2


async def test_an_absent_model_is_the_one_that_is_served(client: httpx.AsyncClient, served: Served) -> None:
    for body in (ASK, {**ASK, "model": None}):
        answer = await client.post(URL, json=body)
        assert answer.json()["model"] == "smol"
        assert served.orchestrator.submitted[-1][3] == ""


@pytest.mark.parametrize("model", ["gpt-4", "", "smol ", "Smol"])
async def test_a_model_that_is_not_served(client: httpx.AsyncClient, served: Served, model: str) -> None:
    answer = await client.post(URL, json={**ASK, "model": model})
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert (error["type"], error["param"], error["code"]) == ("not_found_error", "model", "model_not_found")
    assert "smol" in error["message"], "the message names what is served"
    assert served.orchestrator.submitted == []


async def test_a_stream_byte_for_byte(client: httpx.AsyncClient) -> None:
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post(URL, json=asked, headers={"X-Request-Id": "r"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    created = events(answer.content)[0]["created"]
    head = f'{{"id":"chatcmpl-r","object":"chat.completion.chunk","created":{created},"model":"smol","choices":['

    def chunk(choice: str, usage: str = "null") -> str:
        return f'data: {head}{choice}],"usage":{usage}}}\n\n'

    assert answer.text == (
        chunk('{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}')
        + chunk('{"index":0,"delta":{"content":"Hel"},"finish_reason":null}')
        + chunk('{"index":0,"delta":{"content":"lo"},"finish_reason":null}')
        + chunk('{"index":0,"delta":{"content":" Wörld"},"finish_reason":null}')
        + chunk('{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null}')
        + chunk("", '{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}')
        + "data: [DONE]\n\n"
    )


async def test_without_include_usage_no_chunk_mentions_usage(client: httpx.AsyncClient) -> None:
    for options in (None, {}, {"include_usage": False}, {"continuous_usage_stats": True}):
        answer = await client.post(URL, json={**ASK, "stream": True, "stream_options": options})
        assert "usage" not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_continuous_usage_counts_up() -> None:
    first = [Usage(5, 2), Delta(0, "a", tokens=2)]
    script = [first, [Usage(5, 3), Delta(0, "b")], [Finish(0, "length"), Usage(5, 4), Done()]]
    served = Served(ScriptedOrchestrator(script))
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(URL, json={**ASK, "stream": True, "stream_options": options})
    *chunks, done = events(answer.content)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 2, 3, 3, 4]
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks] == [0, 5, 5, 5, 5]
    assert done == "[DONE]"


async def test_the_full_path_and_several_choices() -> None:
    call = b'{"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function"}]},"logprobs":{"content":[]}}'
    script = [
        [Delta(1, "b"), Chunk(0, call)],
        [Finish(1, "stop", b'"END"'), Finish(0, "tool_calls"), Extra(b'{"prompt_token_ids":[1]}'), Done()],
    ]
    served = Served(ScriptedOrchestrator(script))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(URL, json={**ASK, "stream": True, "n": 2})
    first, second, text, tools, stopped, called, extra, done = events(answer.content)
    chunks = (first, second, text, tools, stopped, called)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 1, 0, 1, 0]
    assert tools["choices"][0] == {**json.loads(call), "index": 0, "finish_reason": None}
    assert (stopped["choices"][0]["finish_reason"], stopped["choices"][0]["stop_reason"]) == ("stop", "END")
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    assert extra["prompt_token_ids"] == [1]
    assert done == "[DONE]"


async def test_what_the_replica_refuses_is_a_status_and_no_stream(client: httpx.AsyncClient, served: Served) -> None:
    async def refuse() -> None:
        raise ApiError(400, "too long", param="messages", code="context_length_exceeded", headers={"Retry-After": "1"})

    served.orchestrator.before = refuse
    for stream in (True, False):
        answer = await client.post(URL, json={**ASK, "stream": stream})
        assert answer.status_code == 400
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"] == {
            "message": "too long",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }


async def test_a_failure_after_output() -> None:
    served = Served(ScriptedOrchestrator([[Delta(0, "Hel")], ApiError(503, "lost", code="replica_lost")]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        whole = await client.post(URL, json=ASK)
        stream = await client.post(URL, json={**ASK, "stream": True})
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "replica_lost")
    _, text, error, done = events(stream.content)
    assert text["choices"][0]["delta"] == {"content": "Hel"}
    assert (error["error"]["code"], done) == ("replica_lost", "[DONE]")
    assert all(stream.closed.is_set() for stream in served.orchestrator.streams)


async def test_a_fault_of_ours_shows_no_detail(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(ScriptedOrchestrator([[Delta(0, "Hel")], RuntimeError("secret /path")]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        whole = await client.post(URL, json=ASK, headers={"X-Request-Id": "one"})
        stream = await client.post(URL, json={**ASK, "stream": True}, headers={"X-Request-Id": "two"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "internal_error")
    *_, error, done = events(stream.content)
    assert (error["error"]["code"], done) == ("internal_error", "[DONE]")
    assert "secret" not in whole.text + stream.text
    faults = [record for record in caplog.records if record.name == "app.routes"]
    assert [("one" in record.message, "two" in record.message) for record in faults] == [(True, False), (False, True)]
    assert all(record.exc_info for record in faults), "each with its traceback, once"


async def test_nothing_begins_once_the_server_stops(client: httpx.AsyncClient, served: Served) -> None:
    served.stopping.set()
    answer = await client.post(URL, json=ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert answer.headers["connection"] == "close"
    assert served.orchestrator.submitted == []


async def test_the_time_limit_goes_with_the_request() -> None:
    served = Served(request_timeout_s=7.0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        await client.post(URL, json=ASK)
    assert served.orchestrator.limit_s == 7.0
