from __future__ import annotations

import httpx
import pytest

from tests.routes.serving import Served

ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def submitted_limit(header: str | None, limit_s: float) -> float:
    served = Served(request_timeout_s=limit_s)
    headers = {} if header is None else {"X-Request-Timeout": header}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post("/v1/chat/completions", json=ASK, headers=headers)
    assert answer.status_code == 200
    return served.orchestrator.limit_s


@pytest.mark.parametrize(
    ("header", "limit_s", "expected"),
    [(None, 0.0, 0.0), (None, 7.0, 7.0), ("2.5", 0.0, 2.5), ("2.5", 7.0, 2.5), ("30", 7.0, 7.0)],
)
async def test_the_shorter_limit_holds(header: str | None, limit_s: float, expected: float) -> None:
    assert await submitted_limit(header, limit_s) == expected


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon", "", "1 s"])
async def test_a_bad_header_is_refused_and_nothing_is_submitted(header: str) -> None:
    served = Served()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post("/v1/chat/completions", json=ASK, headers={"X-Request-Timeout": header})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout"
    assert served.orchestrator.submitted == []
