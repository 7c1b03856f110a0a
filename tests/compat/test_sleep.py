"""Stages that sleep, on a server of two API workers. 134 and 135 are numbers of users' reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.faults.streams import Streams
from tests.servers import Server, start_server, wait_for

LINE = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2", "--api-key", "key")
KEY = {"Authorization": "Bearer key"}
CHAT = {"messages": [{"role": "user", "content": "a b"}]}
_STAGES = """\
pipeline: stub
stages:
  - {stage_id: 0, name: text, kind: stub, engine_args: {sleeps: true}}
  - {stage_id: 1, name: picture, kind: stub, engine_args: {chats: false, draws: true}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    deploy = tmp_path_factory.mktemp("sleep") / "deploy.yaml"
    deploy.write_text(_STAGES)
    with start_server((*LINE, "--deploy-config", str(deploy))) as server:
        yield server.wait_ready(60)


def post(server: Server, path: str, body: object = None, key: dict[str, str] = KEY) -> httpx.Response:
    return httpx.post(server.url + path, json={} if body is None else body, headers=key, timeout=30)


def states(server: Server) -> list[bool]:
    """What several API workers say; a connection each."""
    return [httpx.get(f"{server.url}/is_sleeping", headers=KEY).json()["is_sleeping"] for _ in range(8)]


def test_134_requests_of_a_sleeping_stage_are_told_so_and_those_of_others_are_served(server: Server) -> None:
    slept = post(server, "/v1/omni/sleep", {"stage_ids": [0], "level": 2})
    assert (slept.status_code, slept.json()["status"]) == (200, "SUCCESS")
    (ack,) = slept.json()["acks"]
    assert (ack["stage_id"], ack["freed_bytes"], ack["pid"] in server.replicas) == (0, 1000, True)
    for _ in range(8):
        answer = post(server, "/v1/chat/completions", CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "asleep")
        assert answer.headers["retry-after"]
    assert post(server, "/v1/images/generations", {"prompt": "x", "size": "64x64"}).status_code == 200
    assert post(server, "/v1/omni/sleep", {"stage_ids": [0], "level": 2}).json()["status"] == "SUCCESS", "twice"
    wait_for(lambda: all(states(server)), 5, "all workers to know")
    woken = post(server, "/v1/omni/wakeup", {"stage_ids": [0]})
    assert (woken.status_code, woken.json()["status"]) == (200, "SUCCESS")
    assert post(server, "/v1/chat/completions", CHAT).status_code == 200
    assert post(server, "/v1/omni/wakeup").json() == {"status": "SKIPPED", "acks": []}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stage_ids": [7]}, "stage_ids[0]"),
        ({"stage_ids": [0, 1]}, "stage_ids[1]"),
        ({"stage_ids": []}, "stage_ids"),
        ({"stage_ids": "0"}, "stage_ids"),
        ({"level": 3}, "level"),
        ({"level": -1}, "level"),
        ({"mode": "bogus"}, "mode"),
        ({"levels": 1}, "levels"),
    ],
)
def test_135_what_cannot_be_is_refused_and_nothing_sleeps(server: Server, body: object, param: str) -> None:
    refused = post(server, "/v1/omni/sleep", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert not any(states(server))


def test_135_running_requests_end_as_the_mode_says(server: Server) -> None:
    script = {"tokens": 15, "token_s": 0.1}
    for mode, outcome in (("wait", "done"), ("abort", "error")):
        streams = Streams(server, 8, stub=script, headers=KEY).wait_begun()
        assert post(server, "/v1/omni/sleep", {"mode": mode}).status_code == 200
        assert streams.join() == {outcome: 8}
        assert post(server, "/wake_up").status_code == 200
    assert post(server, "/v1/chat/completions", CHAT).status_code == 200


def test_orders_of_two_administrators_are_carried_out_one_after_the_other(server: Server) -> None:
    with ThreadPoolExecutor(8) as admins:
        streams = Streams(server, 2, stub={"tokens": 30, "token_s": 0.1}, headers=KEY).wait_begun()
        slept = admins.submit(post, server, "/v1/omni/sleep", {"mode": "wait"})
        wait_for(lambda: all(states(server)), 5, "all workers to know")
        assert post(server, "/v1/omni/wakeup").json()["status"] == "SUCCESS"
        assert slept.result(0.5).status_code == 200, "it was woken before it slept"
        assert streams.join() == {"done": 2}
        orders = [("/v1/omni/sleep", {"level": level}) for level in (1, 2)] + [("/v1/omni/wakeup", {})]
        given = [admins.submit(post, server, *order) for order in orders * 8]
        assert {order.result().status_code for order in given} == {200}
    post(server, "/v1/omni/wakeup")
    assert post(server, "/v1/chat/completions", CHAT).status_code == 200


def test_numbers_of_replicas_from_two_administrators_are_all_taken(server: Server) -> None:
    async def give() -> set[int]:
        async with httpx.AsyncClient(base_url=server.url, headers=KEY, timeout=30) as admin:
            orders = [{"stage": 0, "replicas": number} for number in (1, 2, 3, 1, 2)]
            answers = await asyncio.gather(*(admin.post("/v1/omni/scale", json=order) for order in orders))
            return {answer.status_code for answer in answers}

    for _ in range(2):
        assert asyncio.run(give()) == {202}
    assert post(server, "/v1/omni/scale", {"stage": 0, "replicas": 1}).status_code == 202
    wait_for(lambda: len(server.replicas) == 2, 60, "the others to leave")


def test_vllms_own_routes(server: Server) -> None:
    assert httpx.post(f"{server.url}/sleep?level=2&mode=wait", headers=KEY).status_code == 200
    wait_for(lambda: all(states(server)), 5, "all workers to know")
    assert httpx.post(f"{server.url}/sleep?level=9", headers=KEY).status_code == 400
    assert httpx.post(f"{server.url}/wake_up", headers=KEY).status_code == 200
    assert not any(states(server))


@pytest.mark.parametrize("path", ["/v1/omni/sleep", "/v1/omni/wakeup", "/sleep", "/wake_up"])
def test_only_administrators_may(server: Server, path: str) -> None:
    assert post(server, path, {}, {"Authorization": "Bearer other"}).status_code == 401


def test_a_replica_that_is_started_anew_meanwhile_stays_out_of_reach_until_the_stage_is_woken(server: Server) -> None:
    import os
    import signal

    (ack,) = post(server, "/v1/omni/sleep", {"stage_ids": [0]}).json()["acks"]
    os.kill(ack["pid"], signal.SIGKILL)
    wait_for(lambda: ack["pid"] not in server.replicas and len(server.replicas) == 2, 20, "another replica")
    wait_for(server.answers, 20, "its return", server=server)
    assert post(server, "/v1/chat/completions", CHAT).json()["error"]["code"] == "asleep"
    assert post(server, "/v1/omni/wakeup").json()["status"] == "SUCCESS"
    assert post(server, "/v1/chat/completions", CHAT).status_code == 200


def test_a_server_without_stages_that_can(tmp_path: object) -> None:
    with start_server(LINE, {"OMNI_STAGE_OVERRIDES": json.dumps({"0": {"engine_args": {}}})}) as server:
        server.wait_ready(60)
        refused = post(server, "/v1/omni/sleep")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stage_ids")
        assert "--enable-sleep-mode" in refused.json()["error"]["message"]
