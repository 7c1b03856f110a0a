"""Links to generated files: where they lead, for whom, and what they say of the file."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done
from app.routes.files import MEDIA_TYPES
from tests.routes.drawing import drawing, picture
from tests.routes.serving import Served

ASK = {"prompt": "x", "response_format": "url"}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return drawing([[picture(data=b"\x89PNG"), Done()]], directory=tmp_path, api_keys=["key"])


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


async def link(client: httpx.AsyncClient, **headers: str) -> dict[str, Any]:
    prefix = headers.pop("prefix", "")
    headers |= {"Authorization": "Bearer key"}
    answer = await client.post(f"{prefix}/v1/images/generations", json=ASK, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"][0]
    return found


async def test_a_file_and_its_head(client: httpx.AsyncClient) -> None:
    found = await link(client)
    answer = await client.get(found["url"])  # without a key
    assert (answer.status_code, answer.content) == (200, b"\x89PNG")
    name = found["url"].rpartition("/")[2]
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == f'inline; filename="{name}"'
    assert answer.headers["content-length"] == "4"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"].startswith("private, max-age=3")
    assert abs(found["expires_at"] - time.time() - 3600) < 60


async def test_head_and_revalidation(client: httpx.AsyncClient) -> None:
    url = (await link(client))["url"]
    head = await client.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "4")
    again = await client.get(url, headers={"If-None-Match": head.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get(url, headers={"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize("name", ["x.png", "a" * 32 + ".png", "..%2Fsettings.json", "%2Fetc%2Fpasswd", "a" * 3000])
async def test_no_other_file(client: httpx.AsyncClient, name: str) -> None:
    await link(client)
    answer = await client.get(f"/v1/files/generated/{name}")
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["code"] in ("file_not_found", "unknown_route")


async def test_an_expired_link(client: httpx.AsyncClient, tmp_path: Path) -> None:
    url = (await link(client))["url"]
    [file] = (tmp_path / "generated").iterdir()
    os.utime(file, (time.time() - 3601,) * 2)
    answer = await client.get(url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")


async def test_links_name_the_host_that_was_asked(client: httpx.AsyncClient) -> None:
    assert (await link(client, Host="ai.test:8443"))["url"].startswith("http://ai.test:8443/v1/files/generated/")


async def test_links_name_the_prefix(served: Served) -> None:
    transport = httpx.ASGITransport(served.app, root_path="/omni")
    async with httpx.AsyncClient(transport=transport, base_url="https://test") as client:
        url = (await link(client, prefix="/omni"))["url"]
        assert url.startswith("https://test/omni/v1/files/generated/")
        assert (await client.get(url)).status_code == 200


async def test_links_begin_as_the_settings_say(tmp_path: Path) -> None:
    script: list[Any] = [[picture(), Done()]]
    served = drawing(script, directory=tmp_path, api_keys=["key"], public_base_url="https://ai.test/omni")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        assert (await link(client))["url"].startswith("https://ai.test/omni/v1/files/generated/")


@pytest.mark.parametrize("format", sorted(MEDIA_TYPES))
async def test_every_format_has_its_type(tmp_path: Path, format: str) -> None:
    made = picture()
    made.format = format
    served = drawing([[made, Done()]], directory=tmp_path, api_keys=["key"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.get((await link(client))["url"])
    assert answer.headers["content-type"] == f"image/{format}"
