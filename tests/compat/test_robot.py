"""A robot's policy behind /v1/realtime/robot/openpi, by OpenPI's own client and by frames of our own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests import tiny_policy
from tests.servers import Server, start_server, wait_for

ROUTE = "/v1/realtime/robot/openpi"
KEY = "secret"
IDLE_S = 2.0
ACTIONS = (6, 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two API workers, a key, two replicas of the policy."""
    model = tiny_policy.build(tmp_path_factory.mktemp("policy"))
    line = ("omni-app", "serve", str(model), "--served-model-name", "arm", "--workers", "2", "--port", "{port}")
    flags = (
        "--api-key",
        KEY,
        "--robot-openpi-idle-timeout",
        str(IDLE_S),
        "--stage-overrides",
        '{"0":{"num_replicas":2}}',
    )
    with start_server((*line, *flags)) as server:
        yield server.wait_ready(120)


def url(server: Server, query: str = "") -> str:
    return f"ws://127.0.0.1:{server.port}{ROUTE}{query}"


def client(server: Server) -> WebsocketClientPolicy:
    return WebsocketClientPolicy(url(server), api_key=KEY)


def socket(server: Server, query: str = "") -> ClientConnection:
    return connect(url(server, query), additional_headers={"Authorization": f"Bearer {KEY}"}, max_size=None)


def observation(**more: Any) -> dict[str, Any]:
    picture = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    return {
        "observation/image": picture,
        "observation/wrist_image": picture[::-1].copy(),
        "observation/state": np.zeros(4),
        "prompt": "pick up the red block",
    } | more


def test_openpis_client(server: Server) -> None:
    policy = client(server)
    told = policy.get_server_metadata()
    assert (told["action_horizon"], told["action_dim"], told["state_dim"]) == (*ACTIONS, 4)
    first, again, other = (policy.infer(observation(seed=seed)) for seed in (1, 1, 2))
    assert (first["actions"].shape, first["actions"].dtype) == (ACTIONS, np.float32)
    np.testing.assert_array_equal(first["actions"], again["actions"])
    assert np.abs(first["actions"] - other["actions"]).max() > 0.001
    assert policy.infer({"endpoint": "reset"}) == {"status": "reset successful"}
    policy.reset()


def test_a_mistake_is_told_and_the_session_goes_on(server: Server) -> None:
    policy = client(server)
    for broken, told in (
        ({"prompt": "pick up"}, "no picture"),
        (observation(**{"observation/state": np.zeros(5)}), "was trained with 4"),
        (observation(sampling_params={"num_inference_steps": 0}), "sampling_params"),
    ):
        with pytest.raises(RuntimeError, match=told):
            policy.infer(broken)
    assert policy.infer(observation())["actions"].shape == ACTIONS
    with socket(server) as plain:
        plain.recv()
        for frame in ("text", b"\xc1"):
            plain.send(frame)
            error = json.loads(plain.recv(timeout=20))
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")


def test_who_may_not(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(url(server), additional_headers={"Authorization": "Api-Key wrong"})
    assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        socket(server, "?model=leg")
    assert refused.value.response.status_code == 404
    with socket(server, "?model=arm") as named:
        assert msgpack_numpy.unpackb(named.recv())["family"] == "pi0"


def test_who_sends_nothing_is_let_go(server: Server) -> None:
    with socket(server) as idle:
        idle.recv()
        began = time.monotonic()
        error = json.loads(idle.recv(timeout=20))
        assert error["error"]["code"] == "idle_timeout"
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(timeout=20)
        assert IDLE_S - 0.5 < time.monotonic() - began < IDLE_S + 5
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4408


def test_many_robots_get_their_own_actions(server: Server) -> None:
    """Each by its state; the same as it gets alone."""

    def act(number: int) -> Any:
        return client(server).infer(observation(**{"observation/state": np.full(4, number / 10), "seed": 1}))["actions"]

    alone = [act(number) for number in range(12)]
    assert len({actions.tobytes() for actions in alone}) == 12
    with ThreadPoolExecutor(12) as pool:
        np.testing.assert_array_equal(list(pool.map(act, range(12))), alone)


def test_a_replica_that_dies_costs_no_robot_its_actions(server: Server) -> None:
    """Actions are sent when they are complete, so the request is made once more."""
    policies = [client(server) for _ in range(4)]
    slow = observation(sampling_params={"num_inference_steps": 1000})
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(policy.infer, slow) for policy in policies]
        wait_for(lambda: sum(_in_flight(server)) == 4, 20, "four requests that run")
        os.kill(server.replicas[0], signal.SIGKILL)
        assert [one.result(timeout=120)["actions"].shape for one in asked] == [ACTIONS] * 4
    wait_for(lambda: len(_in_flight(server)) == 2, 60, "the replica to be back")


def test_who_leaves_ends_the_work(server: Server) -> None:
    with socket(server) as leaving:
        leaving.recv()
        leaving.send(msgpack_numpy.packb(observation(sampling_params={"num_inference_steps": 1000})))
        wait_for(lambda: sum(_in_flight(server)) == 1, 20, "the request to run")
    wait_for(lambda: sum(_in_flight(server)) == 0, 3, "the work to be left")


def test_the_model_is_described(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    [model] = httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]
    assert model["id"] == "arm"
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": []}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_task")
    assert "GET  /v1/realtime/robot/openpi (WebSocket)" in server.output()


def _in_flight(server: Server) -> list[int]:
    """Of each replica that is up."""
    status = httpx.get(f"{server.url}/v1/omni/status", headers={"Authorization": f"Bearer {KEY}"}).json()
    [stage] = status["stages"]
    return [replica["in_flight"] for replica in stage["replicas"] if replica["state"] == "up"]
