from __future__ import annotations

import httpx

from app.routes.version import VERSION


async def test_the_version(client: httpx.AsyncClient) -> None:
    assert VERSION
    assert (await client.get("/version")).json() == {"version": VERSION}
