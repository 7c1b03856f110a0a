"""The web server of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.media.web import Web, serving


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serving() as server:
        yield server
