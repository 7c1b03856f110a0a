"""Clients of a server that speaks which leave after the first piece of sound, and what may be left of them."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.clusters import held_refs
from tests.compat.wire import JSON, head
from tests.servers import Server, wait_for

PATH = "/v1/audio/speech"
AT_A_TIME = 16
SETTLE_S = 20.0
ENDLESS: dict[str, Any] = {
    "input": "x",
    "response_format": "pcm",
    "extra_params": {"stub": {"tokens": 100_000, "token_s": 0.02}},
}
WAYS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"response_format": "wav", "stream_format": "audio"})


def left_after_the_first_piece(server: Server, count: int) -> None:
    """So many requests, a few at a time, each dropped when its first sound comes; returns when the work has ended."""
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for gone in [threads.submit(_leave, server, ENDLESS | WAYS[i % len(WAYS)]) for i in range(count)]:
            gone.result()
    wait_for(lambda: load(server) == 0, SETTLE_S, "the work of clients that left to end", server=server)


def _leave(server: Server, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head("POST", PATH, JSON | {"Content-Length": str(len(content))}) + content)
        received = b""
        while received.find(b"\r\n\r\n") < 0 or len(received) < 1000:
            piece = connection.recv(1 << 16)
            assert piece, received
            received += piece


def load(server: Server) -> int:
    """Requests in the engines, as their last heartbeat said."""
    count: int = server.get("/load").json()["server_load"]
    return count


def open_files(server: Server) -> dict[int, int]:
    """How many descriptors its API workers and replicas hold, which are connections, refs and files."""
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (*server.workers, *server.replicas)}


def shared(server: Server) -> list[str]:
    """What its replicas hold in shared memory."""
    return [name for pid in server.replicas for name in held_refs(pid)]


def assert_nothing_is_left(server: Server, before: dict[int, int]) -> None:
    """No ref, and no more descriptors than before but for connections that stay open for a while."""
    wait_for(lambda: not shared(server), SETTLE_S, "the release of shared memory", server=server)

    def settled() -> bool:
        after = open_files(server)
        return all(after[pid] <= before[pid] + 2 for pid in before)

    wait_for(settled, SETTLE_S, f"open files to be as before: {before}, now {open_files(server)}", server=server)
