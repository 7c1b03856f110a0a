from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from granian.net import SocketSpec

from app.console.serve import OWN_FILES, connection_limit, hand_over, numeric_address, port_problem, socket_problem
from app.settings.schema import ServerConfig


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def test_a_free_port_is_no_problem(port: int) -> None:
    assert port_problem("127.0.0.1", port) is None


def test_a_listening_server_is_seen(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        assert port_problem("127.0.0.1", port) == f"cannot listen on 127.0.0.1 port {port}: address already in use"


def test_a_server_that_is_still_loading_is_seen(port: int) -> None:
    """Granian's main process has bound the port by then, and nobody listens yet."""
    held = SocketSpec("127.0.0.1", port, 128).build()
    assert "address already in use" in (port_problem("127.0.0.1", port) or "")
    del held


def test_connections_of_a_server_that_has_ended_do_not_count(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        served.close()  # this side closes first, so it keeps the address for a minute
        client.close()
    assert port_problem("127.0.0.1", port) is None


def test_an_address_of_another_machine_is_refused() -> None:
    assert "cannot assign requested address" in (port_problem("192.0.2.1", 8091) or "")


def test_a_unix_socket_that_is_taken_or_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert socket_problem(path) is None
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert socket_problem(path) == f"--uds {path}: another server listens on it"
    assert socket_problem(path) is None
    assert not path.exists()
    path.write_text("precious")
    assert "it is no socket" in (socket_problem(path) or "")
    assert path.read_text() == "precious"


def test_names_become_addresses() -> None:
    assert numeric_address(ServerConfig(host="127.0.0.1")) == "127.0.0.1"
    assert numeric_address(ServerConfig(host="localhost")) in ("127.0.0.1", "::1")
    with pytest.raises(OSError, match=r"not known|resolution"):
        numeric_address(ServerConfig(host="no-such-host.invalid"))


def test_typed_flags_are_readable_for_children_and_private() -> None:
    path = hand_over({"model": "demo", "api_key": ["secret"]})
    child = subprocess.run(
        [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", path],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert json.loads(child.stdout) == {"model": "demo", "api_key": ["secret"]}
    assert Path(path).stat().st_nlink == 0
    os.close(int(path.rpartition("/")[2]))


def test_connections_are_limited_by_the_files_that_a_worker_may_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert connection_limit(1000) == 1000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
        assert connection_limit(10**9) == before[1] - OWN_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
