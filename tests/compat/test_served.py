"""The routes over real sockets: Granian with four workers, the master and a replica with the stub engine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.servers import Server, start_server, wait_for

CHAT = "/v1/chat/completions"
STUB = {"OMNI_MODEL": "stub"}
ASK = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for all tests of this file."""
    env = {"OMNI_MAX_BODY_BYTES": "1000000", "OMNI_SSE_KEEP_ALIVE": "0.2", "GRANIAN_WORKERS": "4"}
    with start_server(env=STUB | env) as server:
        yield server.wait_ready(60)


def departures(server: Server) -> int:
    """Streams in the access log whose client left."""
    return server.output().count(" 200 client gone ")


def test_the_openai_package(server: Server) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        model = next(iter(client.models.list())).id
        whole = client.chat.completions.create(model=model, messages=ASK)
        stream = client.chat.completions.create(model=model, messages=ASK, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        text = client.completions.create(model=model, prompt="one two").choices[0].text
    assert whole.choices[0].message.content == streamed == "one two three "
    assert text == "one two "


def test_a_connection_serves_many_requests(server: Server) -> None:
    with httpx.Client(base_url=server.url, limits=httpx.Limits(max_connections=1)) as client:
        for stream in (False, True, False, True):
            answer = client.post(CHAT, json={"messages": ASK, "stream": stream})
            assert answer.status_code == 200
        assert client.post(CHAT, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
        assert client.get("/nope").status_code == 404
        assert client.get("/livez").status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_answered(server: Server, announced: bool) -> None:
    content = b" " * 1_000_001 if announced else iter([b" " * 100_000] * 11)
    answer = httpx.post(server.url + CHAT, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_client_that_leaves_a_silent_stream_is_noticed(server: Server) -> None:
    body = {"messages": ASK, "stream": True, "stub": {"hang_after": 1}}
    before = departures(server)
    with httpx.stream("POST", server.url + CHAT, json=body) as answer:
        lines = answer.iter_lines()
        while ": keep-alive" not in next(lines):
            pass
        left = time.monotonic()
    wait_for(lambda: departures(server) == before + 1, 5, "the line in the access log")
    assert time.monotonic() - left < 3, "one second, and the slack of a busy machine"


def test_shutdown_ends_streams_in_order() -> None:
    body = {"messages": ASK, "stream": True, "stub": {"hang_after": 1}}
    with start_server(env=STUB) as server:
        server.wait_ready(60)
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            while "one" not in next(lines):
                pass
            server.terminate()
            rest = [line for line in lines if line.startswith("data: ")]
        assert "shutting_down" in rest[0]
        assert rest[1:] == ["data: [DONE]"]
        assert server.wait() == 0
        server.assert_nothing_left()
