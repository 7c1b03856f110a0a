"""Speech from a whole server, its sound in shared memory: clients that leave or do not read, replicas that die."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.compat.wire import JSON, Wire, metric
from tests.faults import sounds
from tests.faults.sounds import ENDLESS, PATH
from tests.servers import GRANIAN, Server, start_server, wait_for

DROPPED = 60
"""bench/soak_rows.py drops 500."""
SLOW_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Two API workers and a stub that speaks; what is more than a kilobyte is large."""
    env = {
        "OMNI_MODEL": "stub",
        "OMNI_STAGE_OVERRIDES": json.dumps({"0": {"engine_args": {"speaks": True}}}),
        "OMNI_SHM_THRESHOLD_BYTES": "1k",
        "OMNI_SLOW_CLIENT_TIMEOUT": str(SLOW_S),
    }
    with start_server([*GRANIAN, "--workers", "2", "--respawn-failed-workers"], env) as server:
        yield server.wait_ready(60)
        assert server.stop() == 0
        server.assert_nothing_left()


def ask(server: Server, path: str = PATH, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"input": "x", "response_format": "pcm", **fields}, timeout=30)


def stub(**script: Any) -> dict[str, Any]:
    return {"stub": {"tokens": 20, "token_s": 0.02, **script}}


def ramp(pcm: bytes) -> bool:
    """Whether these are the samples that the stub says, each once and in their order."""
    return array("h", pcm).tolist() == [position % 32768 for position in range(len(pcm) // 2)]


@pytest.mark.parametrize("stream", [None, False])
def test_a_long_sound_arrives_whole(server: Server, stream: bool | None) -> None:
    """More than a request's credit: the replica waits until the worker has taken what came before."""
    content = ask(server, extra_params=stub(tokens=600, token_s=0), stream=stream).content
    assert len(content) == 600 * 9600
    assert ramp(content)


# ------------------------------------------------------------------------------------------------ clients


def test_clients_that_leave_after_the_first_piece_leave_nothing(server: Server) -> None:
    sounds.left_after_the_first_piece(server, sounds.AT_A_TIME)  # so that what starts late has started
    before = sounds.open_files(server)
    sounds.left_after_the_first_piece(server, DROPPED)
    sounds.assert_nothing_is_left(server, before)
    assert ramp(ask(server, extra_params=stub()).content)


def test_a_batch_for_a_client_that_left_stops(server: Server) -> None:
    item = {"input": "x", "extra_params": ENDLESS["extra_params"]}
    with Wire(server) as wire:
        body = json.dumps({"items": [item] * 20, "response_format": "pcm"}).encode()
        wire.send("POST", f"{PATH}/batch", body, JSON)
        wait_for(lambda: sounds.load(server) == 8, 20, "the first items", server=server)
    wait_for(lambda: sounds.load(server) == 0, 20, "the end of all items", server=server)


def test_who_does_not_read_holds_up_nobody(server: Server) -> None:
    """Out of credit the replica pauses; after --slow-client-timeout the request ends, and the connection with it."""
    before = metric(server, "stub:steps_total")
    with Wire(server, receive_buffer=4096) as wire:
        body = ENDLESS | {"extra_params": {"stub": {"tokens": 100_000, "token_s": 0}}}
        wire.send("POST", PATH, json.dumps(body).encode(), JSON)
        wait_for(lambda: sounds.load(server) == 1, 20, "it to begin", 0.01, server=server)
        assert ramp(ask(server, extra_params=stub()).content)
        wait_for(lambda: sounds.load(server) == 0, 20, "its end", server=server)
    assert metric(server, "stub:steps_total") - before < 1000, "10 MB, where all would be 960"


# ------------------------------------------------------------------------------------------------ failures


def test_before_the_first_sound_a_failure_has_its_status(server: Server) -> None:
    for stream in (None, False):
        assert ask(server, extra_params=stub(fail_after=0), stream=stream).status_code == 500
        refused = ask(server, extra_params=stub(refuse="not like this"), stream=stream)
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "not like this")


def test_after_the_first_sound_a_failure_breaks_the_connection(server: Server) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        ask(server, extra_params=stub(fail_after=3))
    events = ask(server, extra_params=stub(fail_after=3), stream=True).text
    assert events.count("event: speech.audio.delta") == 3
    assert "event: error" in events


def test_a_stage_that_stalls_is_told_in_time(server: Server) -> None:
    limit = {"X-Request-Timeout": "1"}
    body = {"input": "x", "response_format": "pcm", "extra_params": stub(hang_after=0)}
    answer = httpx.post(server.url + PATH, json=body, headers=limit, timeout=20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    body["extra_params"] = stub(hang_after=3)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(server.url + PATH, json=body, headers=limit, timeout=20)
    assert (
        '"code":"deadline_exceeded"'
        in httpx.post(server.url + PATH, json=body | {"stream": True}, headers=limit, timeout=20).text
    )


@pytest.mark.parametrize(
    ("fields", "told"), [({}, ""), ({"stream": True}, "replica_lost"), ({"stream": False}, "no_replica")]
)
def test_a_replica_that_dies_is_replaced(server: Server, fields: dict[str, Any], told: str) -> None:
    before = server.replicas
    if told:
        assert f'"code":"{told}"' in ask(server, extra_params=stub(exit_after=3), **fields).text
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(server, extra_params=stub(exit_after=3))
    wait_for(lambda: server.answers() and server.replicas != before, 30, "a new replica", server=server)
    assert ramp(ask(server, extra_params=stub()).content)
