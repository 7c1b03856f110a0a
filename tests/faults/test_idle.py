"""Thousands of clients that are connected and say nothing take no place from those who do."""

from __future__ import annotations

import contextlib
import resource
import socket
import time

import httpx

from tests.servers import start_server

IDLE = 5000


def test_probes_are_answered_beside_thousands_of_idle_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with start_server(("omni-app", "serve", "stub", "--port", "{port}"), {}) as server, contextlib.ExitStack() as idle:
        server.wait_ready()
        for _ in range(IDLE):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        time.sleep(0.5)  # the worker accepts them
        for path in ("/livez", "/health"):
            assert httpx.get(server.url + path, timeout=5).status_code == 200
