"""Kills in a row on one server with the real engine: vLLM's own processes follow, and it comes back each time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.clusters import wait_gone
from tests.faults.matrix import ask, wait_serving
from tests.faults.streams import Streams
from tests.servers import Server, start_server, wait_for
from tests.tiny import tiny_qwen3

LOAD_S = 180
ENDLESS = {"max_tokens": 900, "ignore_eos": True}
SHORT = {"max_tokens": 40, "ignore_eos": True}
LINE = (
    *("omni-app", "serve", str(tiny_qwen3()), "--port", "{port}", "--workers", "2", "--max-model-len", "1024"),
    *("--max-num-seqs", "64", "--kv-cache-memory-bytes", str(1 << 28), "--shutdown-timeout", "60"),
)


def engine_core(server: Server) -> int:
    """Its pid: the child of the replica that computes."""
    (replica,) = server.replicas
    for children in Path(f"/proc/{replica}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("no EngineCore", server=server)


def kill(server: Server, victim: int, core: int) -> None:
    """SIGKILL; /health tells of the outage, the EngineCore is gone, another one serves."""
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: server.answers("/health", 503), 10, "the outage", 0.02, server=server)
    wait_gone(core, 5)
    server.wait_ready(LOAD_S)
    assert ask(server).status_code == 200
    assert engine_core(server) != core


def test_it_survives_whatever_is_killed() -> None:
    with start_server(LINE, {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(LOAD_S)
        wait_serving(server)

        streams = Streams(server, 64, **ENDLESS).wait_begun(60)
        core = engine_core(server)
        kill(server, core, core)
        assert streams.join() == {"error": 64}

        kill(server, server.replicas[0], engine_core(server))

        streams = Streams(server, 64, **ENDLESS).wait_begun(60)
        core = engine_core(server)
        os.kill(server.workers[0], signal.SIGKILL)
        wait_for(lambda: streams.count()["cut"], 5, "its connections to break")
        cut = streams.count()["cut"]
        assert streams.join(120) == {"cut": cut, "done": 64 - cut}
        wait_serving(server)
        assert engine_core(server) == core

        streams = Streams(server, 64, **SHORT).wait_begun(60)
        assert server.stop(90) == 0
        assert streams.join() == {"done": 64}
        wait_gone(core, 5)
        server.assert_nothing_left()
