"""What the API worker itself refuses of a body, on both generation routes. The replica judges everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.routes.body import end_uploads
from tests.routes.serving import Served

URLS = ["/v1/chat/completions", "/v1/completions"]
JSON = {"Content-Type": "application/json"}

INVALID_FIELDS = [
    ({"model": 7}, "model"),
    ({"model": ["smol"]}, "model"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream": []}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"n": "2"}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
]

MALFORMED = [
    b"",
    b"  \n",
    b"{",
    b'{"model": "smol"',
    b'{"model": "smol",}',
    b"{'model': 'smol'}",
    b'{"model": "smol"} {}',
    b'{"n": NaN}',
    b'{"temperature": NaN}',
    b'{"temperature": Infinity}',
    b'{"model": "\xff\xfe"}',
    b'{"model": "\\ud800"}',
    b"\x1f\x8b\x08\x00",
    b"not json",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(("body", "param"), INVALID_FIELDS)
async def test_a_field_of_the_wrong_type_is_named(
    client: httpx.AsyncClient, served: Served, url: str, body: dict[str, object], param: str
) -> None:
    answer = await client.post(url, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["code"] == "invalid_value"
    assert error["message"].startswith(param)
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("body", MALFORMED)
async def test_a_body_that_is_not_json(client: httpx.AsyncClient, served: Served, url: str, body: bytes) -> None:
    answer = await client.post(url, content=body, headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_json")
    assert error["param"] is None
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("body", [b"[]", b'"text"', b"7", b"null", b"true"])
async def test_json_that_is_no_object(client: httpx.AsyncClient, url: str, body: bytes) -> None:
    answer = await client.post(url, content=body, headers=JSON)
    assert answer.status_code == 400
    assert "must be an object" in answer.json()["error"]["message"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": ""},
        {},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
async def test_another_media_type(client: httpx.AsyncClient, served: Served, url: str, headers: dict[str, str]) -> None:
    answer = await client.post(url, content=b'{"messages": []}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize("media_type", ["application/json", "APPLICATION/JSON; charset=UTF-8", "application/ld+json"])
async def test_json_by_any_of_its_names(client: httpx.AsyncClient, media_type: str) -> None:
    answer = await client.post(URLS[0], content=b"{}", headers={"Content-Type": media_type})
    assert answer.status_code == 200


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit(url: str, announced: bool) -> None:
    served = Served(max_body_bytes=1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 100

    content = b" " * 1001 if announced else pieces()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(url, content=content, headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (413, "request_too_large", "request_too_large")
    assert "1000 bytes" in error["message"]


async def test_a_body_of_the_limit_is_read(client: httpx.AsyncClient) -> None:
    served = Served(max_body_bytes=1000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(URLS[0], content=b"{}" + b" " * 998, headers=JSON)
    assert answer.status_code == 200


class Sending:
    """A body that is sent piece by piece; nothing more comes after the last one."""

    def __init__(self, *pieces: bytes, pause_s: float = 0.0, end: bool = False) -> None:
        self._pieces, self._pause_s, self._end = pieces, pause_s, end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(self._pause_s)
            yield piece
        if not self._end:
            await asyncio.Event().wait()


async def send(served: Served, url: str, body: Sending) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        return await client.post(url, content=body, headers=JSON)


@pytest.mark.parametrize("url", [*URLS, "/v1/responses"])
@pytest.mark.parametrize("pieces", [(), (b"{",)])
async def test_a_body_that_stops_coming(url: str, pieces: tuple[bytes, ...]) -> None:
    answer = await send(Served(slow_client_timeout_s=0.05), url, Sending(*pieces))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (408, "timeout_error", "slow_client")
    assert "--slow-client-timeout" in error["message"]


async def test_a_body_that_comes_slowly_is_read() -> None:
    served = Served(slow_client_timeout_s=0.3)
    answer = await send(served, URLS[0], Sending(*[b" "] * 5, b"{}", pause_s=0.1, end=True))
    assert answer.status_code == 200


async def test_a_body_that_still_comes_when_the_server_has_no_more_time() -> None:
    served = Served()
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(send(served, URLS[0], Sending(b"{")))
        await asyncio.sleep(0.05)
        assert len(served.litestar.state.uploads) == 1
        served.draining.set()
        end_uploads(served.litestar)
    assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
    assert not served.litestar.state.uploads
