"""GET /v1/omni/status and POST /v1/omni/scale, over what the master has told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster import messages as m
from app.settings.schema import StageConfig
from tests.routes.serving import ScriptedOrchestrator, Served

STAGE = StageConfig(stage_id=0, name="text", kind="stub", model="stub", devices="cpu")
UP = m.ReplicaInfo(0, 0, "ipc:///r", "up", "here", 7, m.Load(2, 3), m.Capabilities(), local=True)


class Told(ScriptedOrchestrator):
    """The master does at once what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = m.Membership(1, 1, [UP], wanted=[(0, 1)])
        self.told: list[m.Message] = []

    async def tell_master(self, message: m.Scale, took_effect: Callable[[m.Membership], bool]) -> None:
        self.told.append(message)
        self.membership = m.Membership(2, 1, [UP], wanted=[(message.stage_id, message.replicas)])
        assert took_effect(self.membership)


def served(directory: Path = Path("/nowhere"), **server: Any) -> Served:
    made = Served(Told(), directory, **server)
    made.settings.stages = [STAGE]
    return made


def client_of(made: Served, key: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(made.app), base_url="http://test", headers=headers)


async def test_the_status_is_for_everybody_with_a_key() -> None:
    async with client_of(served()) as client:
        answer = await client.get("/v1/omni/status")
    assert answer.status_code == 200
    (stage,) = answer.json()["stages"]
    assert (stage["stage_id"], stage["name"], stage["wanted"]) == (0, "text", 1)
    (replica,) = stage["replicas"]
    wanted = {"replica_id": 0, "host": "here", "pid": 7, "state": "up", "in_flight": 5, "queue": 3}
    assert wanted.items() <= replica.items()
    async with client_of(served(api_keys=["right"])) as client:
        assert (await client.get("/v1/omni/status")).status_code == 401


async def test_scaling_is_for_administrators_and_told_to_the_master(tmp_path: Path) -> None:
    body = {"stage": "text", "replicas": 3}
    async with client_of(served()) as client:
        assert (await client.post("/v1/omni/scale", json=body)).status_code == 403
    made = served(tmp_path, api_keys=["right"])
    async with client_of(made, "right") as client:
        answer = await client.post("/v1/omni/scale", json=body)
    assert (answer.status_code, answer.json()["stages"][0]["wanted"]) == (202, 3)
    assert isinstance(made.orchestrator, Told)
    assert made.orchestrator.told == [m.Scale(0, 3)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"replicas": 2}, "stage"),
        ({"stage": 0}, "replicas"),
        ({"stage": 0, "replicas": 0}, "replicas"),
        ({"stage": 0, "replicas": 2.5}, "replicas"),
        ({"stage": 0, "replicas": 2, "device": "1"}, "device"),
        ({"stage": 7, "replicas": 2}, "stage"),
        ({"stage": 0, "replicas": 2, "devices": "x"}, "devices"),
    ],
)
async def test_wrong_bodies(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    async with client_of(served(tmp_path, api_keys=["right"]), "right") as client:
        answer = await client.post("/v1/omni/scale", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
