"""Browsers of other origins, and headers out of all proportion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.factory import OmniApp
from app.routes import exception_handlers, gate, handlers
from app.routes.docs import openapi_config
from tests.routes.serving import Served

Connect = Callable[..., httpx.AsyncClient]
CHAT = "https://chat.example.org"


@pytest.fixture
def connect() -> Connect:
    """A client of the application as app.factory assembles it, without an engine."""

    def client(**server: Any) -> httpx.AsyncClient:
        served = Served(**server)
        app = OmniApp(
            handlers,
            exception_handlers=exception_handlers,
            cors_config=gate.cors_config(served.settings.server),
            openapi_config=openapi_config(),
            logging_config=None,
        )
        app.state.update(served.litestar.state.dict())
        app._running = True
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    return client


def preflight(origin: str, method: str = "POST", headers: str = "authorization, content-type") -> dict[str, str]:
    return {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}


async def test_a_preflight_needs_no_key(connect: Connect) -> None:
    client = connect(api_keys=["secret"], allowed_origins=[CHAT])
    answer = await client.options("/v1/chat/completions", headers=preflight(CHAT))
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == CHAT
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/models", "/nope", "/health"])
async def test_answers_and_errors_can_be_read_by_an_allowed_page(connect: Connect, path: str) -> None:
    client = connect(api_keys=["secret"], allowed_origins=[CHAT])
    answer = await client.get(path, headers={"Origin": CHAT})
    assert answer.headers["access-control-allow-origin"] == CHAT
    assert answer.headers["access-control-expose-headers"] == "Retry-After, X-Request-Id"
    other = await client.get(path, headers={"Origin": "https://evil.test"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://a.example.org", True),
        ("https://example.org", False),
        ("http://a.example.org", False),
        ("https://a.example.org.evil.test", False),
        ("null", False),
    ],
)
async def test_wildcards_in_origins(connect: Connect, origin: str, allowed: bool) -> None:
    client = connect(allowed_origins=["https://*.example.org"])
    answer = await client.options("/v1/models", headers=preflight(origin))
    assert answer.status_code == (204 if allowed else 403)


@pytest.mark.parametrize(
    ("wish", "flag"),
    [
        (preflight("https://evil.test"), "--allowed-origins"),
        (preflight(CHAT, method="DELETE"), "--allowed-methods"),
        (preflight(CHAT, headers="content-type, x-other"), "--allowed-headers"),
    ],
)
async def test_refused_preflights_have_the_body_of_every_error(
    connect: Connect, wish: dict[str, str], flag: str
) -> None:
    client = connect(allowed_origins=[CHAT], allowed_methods=["post"], allowed_headers=["Authorization"])
    answer = await client.options("/v1/chat/completions", headers=wish)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "cors_refused")
    assert flag in error["message"]
    assert (await client.options("/v1/chat/completions", headers=preflight(CHAT))).status_code == 204


async def test_without_origins_there_is_no_cors(connect: Connect) -> None:
    answer = await connect().get("/v1/models", headers={"Origin": CHAT})
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_headers_over_the_limit(connect: Connect) -> None:
    client = connect(max_header_bytes=2000)
    assert (await client.get("/livez", headers={"X-A": "a" * 1000})).status_code == 200
    for headers in ({"X-A": "a" * 2000}, {f"X-{index}": "a" * 20 for index in range(100)}):
        answer = await client.get("/livez", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")
        assert "--max-header-bytes" in answer.json()["error"]["message"]
        assert answer.headers["x-request-id"]
