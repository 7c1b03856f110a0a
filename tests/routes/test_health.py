from __future__ import annotations

import httpx
import pytest

from tests.routes.serving import Served

READINESS = [("GET", "/health"), ("GET", "/readyz"), ("GET", "/ping"), ("POST", "/ping")]


@pytest.mark.parametrize(("method", "path"), READINESS)
async def test_ready(client: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "stages": [{"name": "thinker", "replicas": 1}]}


@pytest.mark.parametrize(("method", "path"), READINESS)
async def test_a_stage_without_a_replica_is_named(
    client: httpx.AsyncClient, served: Served, method: str, path: str
) -> None:
    served.orchestrator.replicas = 0
    answer = await client.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (503, "service_unavailable_error", "not_ready")
    assert "'thinker' (stage 0)" in error["message"]


async def test_a_stopping_server_is_alive_and_not_ready(client: httpx.AsyncClient, served: Served) -> None:
    served.stopping.set()
    assert (await client.get("/livez")).status_code == 200
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


async def test_alive_without_replicas(client: httpx.AsyncClient, served: Served) -> None:
    served.orchestrator.replicas = 0
    assert (await client.get("/livez")).json() == {"status": "ok"}
    assert (await client.head("/livez")).status_code == 200
