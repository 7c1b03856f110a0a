from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator

import httpx
import pytest

from app.cluster.messages import Delta
from app.protocol.errors import ApiError
from app.telemetry.logging import AccessRecord
from tests.routes.serving import ScriptedOrchestrator, Served, exchange

CHAT = "/v1/chat/completions"
NEW_ID = re.compile(r"[0-9a-f]{32}")


@pytest.mark.parametrize("given", ["abc", "A-1.b_c:d", "x" * 128])
@pytest.mark.parametrize("path", ["/livez", "/nope", "/v1/models/nope"])
async def test_a_good_id_comes_back(client: httpx.AsyncClient, given: str, path: str) -> None:
    answer = await client.get(path, headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b'a"b', b"\xc3\xa9", b"a\tb", b"<script>"])
async def test_a_bad_id_is_replaced(client: httpx.AsyncClient, given: bytes) -> None:
    answer = await client.get("/livez", headers=[(b"X-Request-Id", given)])
    assert NEW_ID.fullmatch(answer.headers["x-request-id"])


async def test_ids_are_made_when_there_is_none(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json={})
    assert NEW_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


async def test_a_stream_carries_the_id(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json={"stream": True}, headers={"X-Request-Id": "s"})
    assert answer.headers["x-request-id"] == "s"


async def test_the_header_can_be_turned_off() -> None:
    transport = httpx.ASGITransport(Served(request_id_headers=False).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/livez", headers={"X-Request-Id": "me"})
    assert "x-request-id" not in answer.headers


class AccessLog(logging.Handler):
    """Keeps the records of the access log."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[AccessRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.ended.append(record.__dict__["access"])


@pytest.fixture
def access_log() -> AccessLog:
    """The access log of the test, and nothing of it afterwards."""
    return AccessLog()


@pytest.fixture(autouse=True)
def _listen(access_log: AccessLog) -> Iterator[None]:
    logger = logging.getLogger("app.access")
    logger.addHandler(access_log)
    logger.setLevel(logging.INFO)
    yield
    logger.removeHandler(access_log)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("script", "body", "status", "outcome"),
    [
        (None, {}, 200, "done"),
        (None, {"stream": True}, 200, "done"),
        (None, {"model": "nope"}, 404, "refused"),
        ([ApiError(503, "lost")], {}, 503, "failed"),
        ([ValueError()], {}, 500, "failed"),
        ([[Delta(0, "a")], ApiError(503, "lost")], {"stream": True}, 200, "failed"),
        ([[Delta(0, "a")], ValueError()], {"stream": True}, 200, "failed"),
    ],
)
async def test_one_line_for_each_request(
    access_log: AccessLog, script: list[object], body: dict[str, object], status: int, outcome: str
) -> None:
    served = Served(ScriptedOrchestrator(script))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        await client.post(CHAT, json=body, headers={"X-Request-Id": "me"})
    [line] = access_log.ended
    assert (line.request_id, line.method, line.path) == ("me", "POST", CHAT)
    assert (line.status, line.outcome) == (status, outcome)
    assert line.seconds >= 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_left_is_in_the_log(access_log: AccessLog, stream: bool) -> None:
    served = Served(ScriptedOrchestrator([[Delta(0, "a")], asyncio.Event()]))
    async with exchange(served, CHAT, {"stream": stream}) as running:
        await asyncio.sleep(0.01)
        running.leave()
        await running.rest()
    [line] = access_log.ended
    assert (line.outcome, line.client) == ("client gone", "192.0.2.1")
    assert line.status == (200 if stream else 499)


async def test_a_stream_that_shutdown_ended_is_in_the_log(access_log: AccessLog) -> None:
    served = Served(ScriptedOrchestrator([[Delta(0, "a")], asyncio.Event()]))
    async with exchange(served, CHAT, {"stream": True}) as running:
        await running.chunk()
        served.draining.set()
        await running.rest()
    assert [line.outcome for line in access_log.ended] == ["draining"]


async def test_probes_that_succeed_are_quiet(client: httpx.AsyncClient, access_log: AccessLog, served: Served) -> None:
    await client.get("/health")
    assert access_log.ended == []
    served.orchestrator.replicas = 0
    await client.get("/health")
    assert [line.status for line in access_log.ended] == [503]
