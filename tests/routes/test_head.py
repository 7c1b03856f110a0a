from __future__ import annotations

import httpx
import pytest

from tests.routes.serving import Served


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/version", "/v1/models/smol", "/openapi.json"])
async def test_the_head_is_that_of_get(path: str, replicas: int) -> None:
    served = Served()
    served.orchestrator.replicas = replicas
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        head = await client.head(path, headers={"X-Request-Id": "r"})
        get = await client.get(path, headers={"X-Request-Id": "r"})
    assert (head.status_code, head.headers) == (get.status_code, get.headers)
    assert (head.content, head.headers["content-length"]) == (b"", str(len(get.content)))


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), ("/v1/completions", 405)])
async def test_errors_too(client: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await client.head(path)
    assert (answer.status_code, answer.content) == (status, b"")
