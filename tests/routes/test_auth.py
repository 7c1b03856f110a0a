from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.routes.serving import Served

GUARDED = [
    "/v1/models",
    "/v1/models/smol",
    "/version",
    "/ping",
    "/docs",
    "/docs/openapi.json",
    "/docs/assets/swagger-ui.css",
    "/openapi.json",
]

KEY = "sk-\u00e4-one"


@pytest.fixture
async def guarded() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Served(api_keys=["sk-two", KEY]).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
async def test_probes_are_open(guarded: httpx.AsyncClient, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200
    assert (await guarded.head(path)).status_code == 200


@pytest.mark.parametrize("path", GUARDED)
async def test_everything_else_needs_a_key(guarded: httpx.AsyncClient, path: str) -> None:
    refused = await guarded.get(path)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json()["error"]["type"] == "authentication_error"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert (await guarded.get(path, headers={"Authorization": "Bearer sk-two"})).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_key_comes_before_the_body(guarded: httpx.AsyncClient, path: str) -> None:
    assert (await guarded.post(path, content=b"{")).status_code == 401


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "sk-two", "Basic sk-two", "Bearer sk-tw", "Bearer sk-two2", "Bearer sk-one"]
)
async def test_a_header_that_is_no_key(guarded: httpx.AsyncClient, value: str) -> None:
    answer = await guarded.get("/v1/models", headers={"Authorization": value})
    assert answer.status_code == 401
    assert "sk-" not in answer.text


@pytest.mark.parametrize("value", [f"Bearer {KEY}".encode(), b"bearer  sk-two "])
async def test_any_of_the_keys_opens(guarded: httpx.AsyncClient, value: bytes) -> None:
    assert (await guarded.get("/v1/models", headers=[(b"Authorization", value)])).status_code == 200


async def test_without_keys_everything_is_open(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(("key", "status"), [("sk-two", 200), ("sk-tw", 401), ("", 401)])
async def test_the_header_of_anthropics_clients(guarded: httpx.AsyncClient, key: str, status: int) -> None:
    assert (await guarded.get("/version", headers={"X-Api-Key": key})).status_code == status
