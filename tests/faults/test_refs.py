"""Large pictures in shared memory: they arrive whole, and whoever dies or leaves, nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.engines import stubpictures
from app.protocol.pictures import PictureTask
from tests.clusters import held_refs
from tests.compat.wire import JSON, Wire
from tests.servers import GRANIAN, Server, start_server, wait_for

GENERATIONS = "/v1/images/generations"
SIDE = 700
SIZE = f"{SIDE}x{SIDE}"
ENDLESS = {"prompt": "x", "size": SIZE, "stream": True, "partial_images": 2, "output_compression": 100}
ENDLESS |= {"extra_params": {"stub": {"hang_after": 3, "tokens": 9}}}
"""Two previews, then silence."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Two API workers and a stub that draws; what is more than a kilobyte is large."""
    overrides = {"0": {"engine_args": {"chats": False, "draws": True}}}
    env = {"OMNI_MODEL": "stub", "OMNI_STAGE_OVERRIDES": json.dumps(overrides), "OMNI_SHM_THRESHOLD_BYTES": "1k"}
    with start_server([*GRANIAN, "--workers", "2", "--respawn-failed-workers"], env) as server:
        yield server.wait_ready(60)
        assert server.stop() == 0
        server.assert_nothing_left()


def held(server: Server) -> list[str]:
    """What its replica holds."""
    return [name for pid in server.replicas for name in held_refs(pid)]


def mapped(server: Server) -> list[int]:
    """Which of its processes see shared pictures of ours."""
    return [pid for pid in server.tree() if "/memfd:omni-" in _maps(pid)]


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def nothing_left(server: Server) -> bool:
    return not held(server) and not mapped(server)


def test_large_pictures_are_those_that_were_drawn(server: Server) -> None:
    task = PictureTask(prompt="x", width=SIDE, height=SIDE, seed=3)
    asked = {"prompt": "x", "size": SIZE, "seed": 3, "n": 2}
    expected = [bytes(stubpictures.picture(task, index).data) for index in range(2)]
    assert min(map(len, expected)) > 1024
    answer = httpx.post(server.url + GENERATIONS, json=asked, timeout=30).json()
    assert [b64decode(item["b64_json"]) for item in answer["data"]] == expected
    one = httpx.post(server.url + GENERATIONS, json=asked | {"n": 1, "response_format": "file"}, timeout=30)
    assert one.content == expected[0]
    links = httpx.post(server.url + GENERATIONS, json=asked | {"response_format": "url"}, timeout=30).json()
    assert [httpx.get(item["url"], timeout=30).content for item in links["data"]] == expected
    wait_for(lambda: nothing_left(server), 10, "the pictures to be let go of", server=server)


def begun(server: Server, wire: Wire) -> None:
    """A stream whose previews have come."""
    wire.send("POST", GENERATIONS, json.dumps(ENDLESS).encode(), JSON)
    wait_for(lambda: len(held(server)) == 2, 20, "two previews in shared memory", server=server)


def test_a_client_that_leaves(server: Server) -> None:
    with Wire(server) as wire:
        begun(server, wire)
    wait_for(lambda: nothing_left(server), 10, "the previews to be let go of", server=server)


def test_a_worker_that_is_killed(server: Server) -> None:
    with Wire(server) as wire:
        begun(server, wire)
        [worker] = wait_for(lambda: mapped(server), 10, "a worker that reads them", server=server)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: nothing_left(server), 10, "the previews to be let go of", server=server)
    wait_for(lambda: server.answers() and len(server.workers) == 2, 30, "a new worker", server=server)


def test_a_replica_that_is_killed(server: Server) -> None:
    [replica] = server.replicas
    with Wire(server) as wire:
        begun(server, wire)
        os.kill(replica, signal.SIGKILL)
        assert b"replica_lost" in wire.read_until(b"replica_lost")
    wait_for(lambda: nothing_left(server), 10, "the previews to be let go of", server=server)
    wait_for(lambda: server.answers() and server.replicas != [replica], 30, "a new replica", server=server)
    test_large_pictures_are_those_that_were_drawn(server)
