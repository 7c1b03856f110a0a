"""The sockets of a process get the limit, and a client that vanishes without a FIN loses its connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from app.connections import give_up_lost_clients
from tests.vanishing import vanish


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def user_timeout(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_connections_before_and_after_have_the_limit_and_others_do_not(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as before:
        give_up_lost_clients(7.5)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as after:
            assert [user_timeout(x) for x in (before, after)] == [7500, 7500]
            assert after.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert user_timeout(client) == 0


def test_no_descriptor_is_left_open(listener: socket.socket) -> None:
    before = os.listdir("/proc/self/fd")
    give_up_lost_clients(7.5)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("sends", [True, False], ids=["with data on the way", "idle"])
def test_a_client_that_vanishes_is_given_up(listener: socket.socket, sends: bool) -> None:
    give_up_lost_clients(1.0)
    with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
        vanish(client)
        server.settimeout(20)
        if sends:
            server.send(b"are you there?")
        with pytest.raises(TimeoutError, match="Connection timed out"):
            server.recv(1)
