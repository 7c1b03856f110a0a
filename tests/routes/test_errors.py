from __future__ import annotations

import httpx
import pytest
from litestar.exceptions import ImproperlyConfiguredException

from tests.routes.serving import ScriptedOrchestrator, Served

NO_ROUTE = ["/", "/v1", "/v1/health", "/v1/chat", "/v1/chat/completions/x", "/docs/x", "/docs/assets/../sse.py"]


@pytest.mark.parametrize("path", NO_ROUTE)
async def test_no_such_route(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    error = answer.json()["error"]
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    assert (error["type"], error["param"], error["code"]) == ("not_found_error", None, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/v1/completions", "POST"),
        ("POST", "/version", "GET"),
    ],
)
async def test_the_wrong_method(client: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert allowed in answer.headers["allow"].split(", ")


async def test_a_host_header_that_is_none(client: httpx.AsyncClient) -> None:
    answer = await client.get("/livez", headers=[(b"Host", b"caf\xe9 fr")])
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_fault_that_litestar_found_is_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(ScriptedOrchestrator([ImproperlyConfiguredException("/secret/path")]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post("/v1/completions", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "/secret/path" in caplog.text
