from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.routes.serving import Served


@pytest.fixture
def served() -> Served:
    """The routes over a scripted orchestrator that greets."""
    return Served()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of `served`."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client
