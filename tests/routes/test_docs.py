from __future__ import annotations

import re

import httpx
import pytest

from tests.routes.serving import Served

LINK = re.compile(r'(?:src|href|url)[=:]\s*"([^"]+)"')


@pytest.mark.parametrize("root", ["", "/omni", "/a/b"])
async def test_every_link_of_the_page_leads_somewhere_here(root: str) -> None:
    transport = httpx.ASGITransport(Served().app, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        page = await client.get(f"{root}/docs")
        assert page.headers["content-type"].startswith("text/html")
        links = LINK.findall(page.text)
        assert len(links) == 4
        for link in links:
            assert link.startswith(f"{root}/"), "never another host"
            assert (await client.get(link)).status_code == 200


@pytest.mark.parametrize("root", ["", "/omni"])
@pytest.mark.parametrize("path", ["/openapi.json", "/docs/openapi.json"])
async def test_the_document_names_the_prefix(root: str, path: str) -> None:
    transport = httpx.ASGITransport(Served().app, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        document = (await client.get(root + path)).json()
    assert document["servers"] == [{"url": root or "/"}]


async def test_the_document_describes_the_routes(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) >= {
        "/livez",
        "/health",
        "/readyz",
        "/ping",
        "/version",
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/chat/completions",
        "/metrics",
        "/v1/completions",
    }
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "messages" in chat["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"200", "400", "404", "413", "503"} <= set(chat["responses"])
    refused = chat["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/ErrorBody"}


async def test_assets_are_whole(client: httpx.AsyncClient) -> None:
    script = await client.get("/docs/assets/swagger-ui-bundle.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert len(script.text) > 1_000_000
    assert "SwaggerUIBundle" in script.text


@pytest.mark.parametrize("name", ["LICENSE.swagger-ui", "swagger-ui.css.gz", "..%2Fdocs.py", "%2Fetc%2Fpasswd"])
async def test_no_other_file_is_served(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/docs/assets/{name}")).status_code == 404
