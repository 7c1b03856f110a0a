"""Routes that pass bodies and answers on: documents, named events, and how they end."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from app.cluster.messages import Document, Done, Named, Usage
from app.protocol.errors import ApiError
from tests.routes.serving import ScriptedOrchestrator, Served, Step, exchange

DOCUMENT: list[Step] = [[Usage(3, 0), Document(b'{"object":"x"}'), Done()]]
EVENTS: list[Step] = [
    [Named("one", b'{"a":1}'), Named("two", b'{"b":2}')],
    [Named("three", b"{}"), Usage(1, 2), Done()],
]

KINDS = {
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/chat/completions/batch": "chat_batch",
    "/generative_scoring": "generative_scoring",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "cohere_embed",
    "/pooling": "pooling",
    "/classify": "classify",
    "/score": "score",
    "/v1/score": "score",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}


def served(script: list[Step]) -> Served:
    return Served(ScriptedOrchestrator(script))


async def post(app: Served, path: str, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app.app), base_url="http://test") as client:
        return await client.post(path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(("path", "kind"), KINDS.items())
async def test_the_body_goes_out_and_the_document_comes_back_as_they_are(path: str, kind: str) -> None:
    app, body = served(DOCUMENT), b'{ "model": "smol", "anything": [1, 2.50] }'
    answer = await post(app, path, body)
    assert (answer.status_code, answer.content) == (200, b'{"object":"x"}')
    assert answer.headers["content-type"] == "application/json"
    ((asked, _, sent, model),) = app.orchestrator.submitted
    assert (asked, sent, model) == (kind, body, "smol")
    assert app.orchestrator.streams[0].closed.is_set()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_named_events_are_framed(path: str) -> None:
    answer = await post(served(EVENTS), path, b'{"stream": true}')
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == ('event: one\ndata: {"a":1}\n\nevent: two\ndata: {"b":2}\n\nevent: three\ndata: {}\n\n'), (
        "and no [DONE]: these APIs have none"
    )


@pytest.mark.parametrize("failure", [ApiError(503, "lost", code="replica_lost"), RuntimeError("a fault")])
async def test_a_stream_that_fails_ends_with_an_error_event(failure: Exception) -> None:
    answer = await post(served([EVENTS[0], failure]), "/v1/responses", b'{"stream": true}')
    *_, last = answer.text.strip().split("\n\n")
    name, data = last.split("\n")
    error = json.loads(data.removeprefix("data: "))
    assert (name, error["type"]) == ("event: error", "error")
    assert set(error["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts(stream: bool) -> None:
    app = served([EVENTS[0], asyncio.Event()])
    async with exchange(app, "/v1/messages", {"stream": stream}) as running:
        if stream:
            await running.chunk()
        await app.orchestrator.accepted.wait()
        running.leave()
        async with asyncio.timeout(5):
            await app.orchestrator.streams[0].closed.wait()


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b'{"model": "nope"}', 404, "model"),
        (b'{"model": 7}', 400, "model"),
        (b'{"stream": "yes"}', 400, "stream"),
        (b"[]", 400, None),
        (b"", 400, None),
        (b'{"a":' * 5000, 400, None),
    ],
)
async def test_what_the_worker_refuses(path: str, body: bytes, status: int, param: str | None) -> None:
    app = served(DOCUMENT)
    answer = await post(app, path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert app.orchestrator.submitted == []
