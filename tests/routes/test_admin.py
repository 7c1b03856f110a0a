"""Routes that change the server for everybody, and those that tell how it is."""

from __future__ import annotations

import httpx
import pytest

from app.cluster.messages import Adapter
from tests.routes.serving import Served

PATHS = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
LOAD = {"lora_name": "a", "lora_path": "/a"}


def client_of(served: Served, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test", headers=headers)


@pytest.mark.parametrize("path", PATHS)
async def test_without_api_keys_nobody_is_an_administrator(path: str) -> None:
    async with client_of(Served()) as client:
        answer = await client.post(path, json=LOAD)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_required")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", [None, "wrong"])
async def test_the_key_is_needed(path: str, key: str | None) -> None:
    async with client_of(Served(api_keys=["right"]), key) as client:
        assert (await client.post(path, json=LOAD)).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATHS[0], b'{"lora_name": "smol", "lora_path": "/a"}', "lora_name"),
        (PATHS[0], b'{"lora_name": "loaded", "lora_path": "/a"}', "lora_name"),
        (PATHS[0], b'{"lora_name": "", "lora_path": "/a"}', "lora_name"),
        (PATHS[0], b'{"lora_name": " ", "lora_path": "/a"}', "lora_name"),
        (PATHS[0], b'{"lora_name": "a", "lora_path": "a\\u0000b"}', "lora_path"),
        (PATHS[0], b'{"lora_name": "a", "lora_path": "/a", "rank": 1}', "rank"),
        (PATHS[0], b'{"lora_name": "a", "lora_name": "b", "lora_path": "/a"}', None),
        (PATHS[1], b'{"lora_name": "a", "lora_name": "b"}', None),
    ],
)
async def test_wrong_bodies(path: str, body: bytes, param: str | None) -> None:
    served = Served(api_keys=["right"])
    served.orchestrator.membership.adapters = [Adapter(0, "loaded", "/x")]
    async with client_of(served, "right") as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_adapters_are_models(served: Served, client: httpx.AsyncClient) -> None:
    served.orchestrator.membership.adapters = [Adapter(0, "sql", "/secret/path")]
    models = (await client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["parent"]) for model in models][-1] == ("sql", "smol")
    assert "/secret/path" not in str(models)
    assert (await client.post("/v1/completions", json={"model": "sql", "prompt": "x"})).json()["model"] == "sql"


async def test_load_counts_what_the_replicas_hold(served: Served, client: httpx.AsyncClient) -> None:
    assert (await client.get("/load")).json() == {"server_load": 0}
    served.orchestrator.replicas = 3
    served.orchestrator.load.running, served.orchestrator.load.waiting = 2, 1
    assert (await client.get("/load")).json() == {"server_load": 9}


@pytest.mark.parametrize(
    ("body", "kind"),
    [({"messages": []}, "chat"), ({"prompt": "x"}, "completion"), ({"messages": [], "prompt": ""}, "chat")],
)
async def test_invocations_go_where_the_body_belongs(
    served: Served, client: httpx.AsyncClient, body: dict[str, object], kind: str
) -> None:
    assert (await client.post("/invocations", json=body)).status_code == 200
    assert served.orchestrator.submitted[0][0] == kind


async def test_an_invocation_that_may_belong_to_a_stage_that_is_not_up(
    served: Served, client: httpx.AsyncClient
) -> None:
    served.orchestrator.known = False
    answer = await client.post("/invocations", json={"input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")


async def test_an_invocation_that_fits_nothing(served: Served, client: httpx.AsyncClient) -> None:
    answer = await client.post("/invocations", json={"input": "x"})
    assert answer.status_code == 400
    assert served.orchestrator.submitted == []
