from __future__ import annotations

import httpx

from app.cluster.messages import Chunk, Delta, Done, Finish, Usage
from tests.routes.serving import ScriptedOrchestrator, Served, events

URL = "/v1/completions"


async def test_a_whole_answer(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(URL, json={"prompt": "x"}, headers={"X-Request-Id": "r"})
    body = answer.json()
    assert answer.status_code == 200
    assert (body["id"], body["object"], body["usage"]["total_tokens"]) == ("cmpl-r", "text_completion", 8)
    assert body["choices"] == [
        {"index": 0, "text": "Hello Wörld", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert served.orchestrator.submitted[0][0] == "completion"


async def test_a_stream_has_text_and_no_role(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json={"prompt": "x", "stream": True})
    *chunks, done = events(answer.content)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", " Wörld", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert done == "[DONE]"


async def test_several_prompts_and_logprobs_on_the_full_path() -> None:
    script = [
        [Chunk(1, b'{"text":"b","logprobs":null}'), Finish(1, "length")],
        [Chunk(0, b'{"text":"a","logprobs":{"tokens":["a"]}}'), Finish(0, "stop", b"7"), Usage(2, 2), Done()],
    ]
    served = Served(ScriptedOrchestrator(script))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(URL, json={"prompt": ["x", "y"]})
    assert answer.json()["choices"] == [
        {"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": "stop", "stop_reason": 7},
        {"index": 1, "text": "b", "logprobs": None, "finish_reason": "length", "stop_reason": None},
    ]


async def test_text_that_needs_escaping_survives() -> None:
    text = 'a"b\\c\n\r\t\x00\u2028é\U0001f600'
    served = Served(ScriptedOrchestrator([[Delta(0, text), Finish(0, "stop"), Done()]]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        whole = await client.post(URL, json={"prompt": "x"})
        stream = await client.post(URL, json={"prompt": "x", "stream": True})
    assert whole.json()["choices"][0]["text"] == text
    assert events(stream.content)[0]["choices"][0]["text"] == text
