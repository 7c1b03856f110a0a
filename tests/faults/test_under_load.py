"""Faults amid traffic: whose work ends, whose goes on, and that nobody's memory grows."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.matrix import ask, wait_serving
from tests.faults.streams import Streams
from tests.servers import Server, free_port, start_server, wait_for
from tests.vanishing import vanish

ENDLESS = {"tokens": 1_000_000, "token_s": 0.1}
ABORT_S = 1.0
"""Within this time work stops in the engine whose client is gone."""
NEWS_S = 1.5
"""How old what /load tells can be: a heartbeat a second, and a busy machine."""


@contextmanager
def serving(*flags: str, **env: str) -> Iterator[Server]:
    line = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2", *flags)
    with start_server(line, {"OMNI_SHUTDOWN_TIMEOUT": "1", **env}) as server:
        wait_serving(server)
        yield server


def load(server: Server) -> int:
    """Requests in the engines."""
    count: int = server.get("/load").json()["server_load"]
    return count


def replicas(server: Server) -> int:
    """Replicas that are up, as /health tells."""
    answer = server.get("/health")
    return answer.json()["stages"][0]["replicas"] if answer.status_code == 200 else 0


def rss_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def request(server: Server, *, stream: bool, stub: dict[str, Any]) -> socket.socket:
    """A request by hand; whoever gets the socket may read from it, or not."""
    content = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": stream, "stub": stub})
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n{content}".encode()
    )
    return client


def test_the_work_of_a_killed_worker_ends_and_no_other() -> None:
    with serving() as server:
        streams = Streams(server, 64, stub=ENDLESS).wait_begun()
        wait_for(lambda: load(server) == 64, 5, "the load to be known")
        os.kill(server.workers[0], signal.SIGKILL)
        wait_for(lambda: streams.count()["cut"], 5, "its connections to break")
        others = 64 - streams.count()["cut"]
        assert 0 < others < 64
        wait_for(lambda: load(server) == others, ABORT_S + NEWS_S, f"{others} requests in the engine")
        wait_serving(server)
        assert ask(server).status_code == 200
        assert streams.count()[""] == others, "the streams of the other worker go on"
        assert server.stop() == 0
        assert streams.join()["error"] == others


def test_clients_that_vanish_without_a_word_are_noticed() -> None:
    with serving("--slow-client-timeout", "2") as server:
        clients = [request(server, stream=stream, stub=ENDLESS) for stream in (True, False)]
        wait_for(lambda: load(server) == 2, 5, "the requests to run", server=server)
        for client in clients:
            vanish(client)
        wait_for(lambda: load(server) == 0, 10, "their end", server=server)
        for client in clients:
            client.close()


def test_clients_that_never_read_cost_bounded_memory_and_disturb_nobody() -> None:
    with serving("--slow-client-timeout", "3") as server:
        before = {pid: rss_mb(pid) for pid in (*server.workers, *server.replicas)}
        idle = [request(server, stream=True, stub={"tokens": 300_000, "token_s": 0}) for _ in range(8)]
        wait_for(lambda: load(server) == 8, 10, "their requests to run")
        reader = Streams(server, 4, stub={"tokens": 20, "token_s": 0.05})
        peak = dict.fromkeys(before, 0.0)
        deadline = time.monotonic() + 30
        while load(server) and time.monotonic() < deadline:
            peak = {pid: max(peak[pid], rss_mb(pid)) for pid in peak}
            time.sleep(0.1)
        assert load(server) == 0, "they are still served"
        assert reader.join() == {"done": 4}
        for pid, most in peak.items():
            assert most - before[pid] < 100, f"{pid} grew from {before[pid]:.0f} to {most:.0f} MB"
        for client in idle:
            client.close()


def test_a_stopped_worker_costs_bounded_memory_and_disturbs_nobody() -> None:
    with serving() as server:
        streams = Streams(server, 64, stub={"tokens": 700, "token_s": 0.01}).wait_begun()
        stopped, other = server.workers
        (replica,) = server.replicas
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(1)
        before = {pid: rss_mb(pid) for pid in (stopped, other, replica)}
        time.sleep(4)
        grown = {pid: rss_mb(pid) - before[pid] for pid in before}
        assert max(grown.values()) < 24, f"MB: {grown}"
        os.kill(stopped, signal.SIGCONT)
        assert streams.join(60) == {"done": 64}


def test_the_loss_of_the_master_leaves_a_remote_replica_alone() -> None:
    port = str(free_port())
    with serving("--omni-master-port", port) as server:
        line = ("omni-app", "headless", "stub", "--stage-id", "0", "--omni-master-port", port)
        with start_server((*line, "--omni-master-address", "127.0.0.1")) as remote:
            wait_for(lambda: replicas(server) == 2, 30, "the remote replica", server=remote)
            streams = Streams(server, 64, stub={"tokens": 30, "token_s": 0.1}).wait_begun()
            (master,) = server.masters
            os.kill(master, signal.SIGKILL)
            assert ask(server, "the remote one answers").status_code == 200
            outcomes = streams.join()
            assert outcomes.keys() == {"done", "error"}, "it has just come, so its share is small, but it has one"
            wait_for(lambda: replicas(server) == 2, 20, "both replicas", server=server)
            assert master not in server.masters
            assert server.stop() == 0
            server.assert_nothing_left()
            assert remote.stop() == 0
            remote.assert_nothing_left()


def test_a_signal_to_every_process_at_once_lets_streams_finish() -> None:
    """What systemd does by default."""
    with serving(OMNI_SHUTDOWN_TIMEOUT="10") as server:
        streams = Streams(server, 64, stub={"tokens": 30, "token_s": 0.1}).wait_begun()
        for pid in server.tree():
            os.kill(pid, signal.SIGTERM)
        assert streams.join() == {"done": 64}, server.output()
        server.wait()
        server.assert_nothing_left()


def test_killed_and_started_again_five_times_on_one_port() -> None:
    port = free_port()
    line = ("omni-app", "serve", "stub", "--port", str(port), "--workers", "2")
    for _ in range(5):
        with start_server(line, port=port) as server:
            wait_serving(server)
            assert ask(server).status_code == 200
            server.kill()
            server.wait()
            server.assert_nothing_left()
