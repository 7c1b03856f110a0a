"""Notice HTTP clients that vanish without a word (no FIN, no RST): the kernel gives up on their connections in time.

Without this a stream to a machine that lost its network runs on for the quarter of an hour that TCP waits, and a
request whose answer is not due yet for ever.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def give_up_lost_clients(limit_s: float) -> None:
    """Limit how long a client of this server may leave what was sent unacknowledged, or the kernel's probes unanswered.

    Holds for the connections that exist and for later ones, which inherit it from the socket that listens. Linux only;
    elsewhere nothing happens.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    with ExitStack() as opened:
        sockets = [opened.enter_context(found) for found in _tcp_sockets()]
        ports = {_port(found) for found in sockets if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}
        for found in sockets:
            if _port(found) in ports:
                _limit(found, limit_s)


def _tcp_sockets() -> Iterator[socket.socket]:
    """Duplicates of all TCP sockets of this process; closing them does not close the originals."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile by another thread
            found = _duplicate(int(name))
            if found is not None and found.family in _FAMILIES and found.type == socket.SOCK_STREAM:
                yield found
            elif found is not None:
                found.close()


def _duplicate(descriptor: int) -> socket.socket | None:
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # no socket; a copy of a lock file left open would keep the lock
        os.close(copy)
        return None


def _port(found: socket.socket) -> int:
    with suppress(OSError):
        port: int = found.getsockname()[1]
        return port
    return 0


def _limit(connection: socket.socket, limit_s: float) -> None:
    quarter = max(1, int(limit_s / 4))
    with suppress(OSError):  # it may have ended meanwhile
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, quarter)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, quarter)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(limit_s * 1000)))
