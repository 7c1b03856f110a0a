"""Chats that are heard, and clients that leave in the middle of them: nothing of either stage stays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clusters import held_refs
from tests.compat.conftest import SPEAKING_CHATS
from tests.compat.wire import Wire, metric
from tests.servers import GRANIAN, Server, start_server, wait_for

AT_ONCE, ROUNDS = 25, 20
HEARD = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}, "stream": True}
ENDLESS = {"stub": {"tokens": 10_000, "token_s": 0.01}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every piece of sound leaves its replica as a ref."""
    deploy = tmp_path_factory.mktemp("chats") / "chats.yaml"
    deploy.write_text(SPEAKING_CHATS)
    env = {"OMNI_MODEL": "stub", "OMNI_DEPLOY_CONFIG": str(deploy), "OMNI_SHM_THRESHOLD_BYTES": "1k"}
    with start_server([*GRANIAN, "--workers", "2"], env) as server:
        yield server.wait_ready(60)
        assert server.stop() == 0
        server.assert_nothing_left()


def descriptors(server: Server) -> int:
    """Open in its workers and replicas together."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (*server.workers, *server.replicas))


def idle(server: Server) -> bool:
    load: int = httpx.get(f"{server.url}/load", timeout=30).json()["server_load"]
    return load == 0 and not any(held_refs(pid) for pid in server.replicas)


def drop(server: Server, after: bytes) -> None:
    """So many chats at once, whose clients leave when they have seen `after`."""
    wires = [Wire(server) for _ in range(AT_ONCE)]
    for wire in wires:
        wire.chat(**HEARD, **ENDLESS)
    for wire in wires:
        if after:
            wire.read_until(after)
        wire.socket.close()


def test_five_hundred_that_leave(server: Server) -> None:
    for after in (b"", b'"data"'):  # whatever is opened once for good has been opened after that
        drop(server, after)
    wait_for(lambda: idle(server), 20, "the end of the first", server=server)
    before, shared = descriptors(server), set(os.listdir("/dev/shm"))
    for turn in range(ROUNDS):
        drop(server, (b"", b'"role"', b'"transcript"', b'"data"')[turn % 4])
    wait_for(lambda: idle(server), 20, "the end of all", server=server)
    wait_for(lambda: descriptors(server) <= before, 20, "as few open files as before", server=server)
    assert set(os.listdir("/dev/shm")) <= shared
    assert metric(server, "omni_requests_running") == metric(server, "omni_requests_waiting") == 0
    for stage in ("0", "1"):
        assert metric(server, "omni_requests_aborted_total", stage=stage, reason="client_disconnect") > 0


@pytest.mark.parametrize("stage", ["text", "speech"])
def test_a_stage_that_dies_ends_that_chat_only(server: Server, stage: str) -> None:
    script = {"token_s": 0.05} | ({"exit_after": 3} if stage == "text" else {})
    spoken = {"token_s": 0.05} | ({"exit_after": 1} if stage == "speech" else {})
    audio = {"format": "pcm16", "extra_params": {"stub": spoken}}
    asked = {
        "messages": [{"role": "user", "content": "one two three four five six"}],
        **HEARD,
        "stub": script,
        "audio": audio,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=30)
    *_, error, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert (json.loads(error)["error"]["code"], done) == ("replica_lost", "[DONE]")
    wait_for(server.answers, 20, "the stage to be back", server=server)
    wait_for(lambda: idle(server), 20, "nothing to run", server=server)
