"""ZeroMQ on asyncio: one Channel per socket, authentication on every ROUTER.

A Channel reads in batches straight from the socket's file descriptor: pyzmq's own asyncio sockets create a future per
message, which costs more than the message when tokens stream.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket as stdlib_socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import parse_monitor_message

from app.cluster.access import USERNAME, ZAP_DOMAIN, Access

logger = logging.getLogger("app.cluster")

Frames = list[zmq.Frame]
Payload = bytes | bytearray | memoryview | zmq.Frame
_READS_PER_TURN = 256
_CLOSED_ON = 5
"""How often a peer may close the connection in the handshake before that means that it wants another key."""
_POLLIN = int(zmq.POLLIN)  # the enum's own `&` costs more than the rest of the question


class _Context(zmq.Context[zmq.Socket[bytes]]):
    def __del__(self) -> None:
        """Nothing. pyzmq's own ends the context, and waits for its sockets: for ever, where those are garbage too.

        It looks for them by weak references, which the collector has cleared by then. This happens to an application
        that its host drops without having run its lifespan. The sockets close themselves; two idle threads stay.
        """


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context whose sockets never hold up the exit of their process."""
    context = _Context()
    context.linger = 0
    return context


class Channel:
    """A ZeroMQ socket bound to the running event loop; `on_message` gets the frames of each message."""

    def __init__(self, socket: zmq.Socket[bytes], on_message: Callable[[Frames], None]) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._loop.add_reader(socket.FD, self._readable)
        self._loop.call_soon(self._readable)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, frames: Sequence[Payload]) -> None:
        """Queue a message; never blocks (there is no high-water mark, credits bound what is in flight).

        On a closed channel it does nothing: its owner tells those who wait that the peer is lost.
        """
        if self._closed:
            return
        with suppress(zmq.Again):  # a DEALER whose peer has never been there yet
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        self._reread()

    def _reread(self) -> None:
        """The descriptor is edge-triggered and a send may have consumed its edge (libzmq, ZMQ_FD)."""
        if not self._closed and cast(int, self._socket.getsockopt(zmq.EVENTS)) & _POLLIN:
            self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._closed:
            return
        for _ in range(_READS_PER_TURN):
            if self._socket.closed:  # handling a message may close it
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._on_message(frames)
            except Exception:  # one bad message must not end the channel
                logger.exception("a message was dropped because handling it failed")
        self._loop.call_soon(self._readable)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; the end of its context waits up to `linger_ms` for what has been sent on it."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.FD)
            self._socket.close(linger_ms)


class Authenticator:
    """Answers the ZMQ authentication protocol (RFC 27) of a context: only who has `access` gets to a ROUTER of it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], access: Access) -> None:
        quiet = logging.getLogger("app.cluster.auth")
        quiet.setLevel(logging.INFO)  # at DEBUG pyzmq logs the passwords it is shown
        self._auth = AsyncioAuthenticator(zmq.asyncio.Context.shadow(context.underlying), log=quiet)
        if access.encrypt:
            self._auth.configure_curve_callback(domain=ZAP_DOMAIN, credentials_provider=_OneKey(access))
        else:
            self._auth.configure_plain(domain=ZAP_DOMAIN, passwords={USERNAME: access.password})

    def start(self) -> None:
        self._auth.start()

    async def stop(self) -> None:
        self._auth.stop()
        # pyzmq's task takes its reader off the loop in a later turn, by the number of a descriptor that is closed by
        # now; a socket opened before that would get the number and lose its own reader.
        for _ in range(3):
            await asyncio.sleep(0)


class _OneKey:
    """Tells pyzmq which client keys CURVE lets in."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._access.public_key)


def router(context: zmq.Context[zmq.Socket[bytes]], access: Access) -> zmq.Socket[bytes]:
    """A ROUTER that authenticates its peers and lets one that re-appears take over its identity."""
    socket = context.socket(zmq.ROUTER)
    access.guard(socket)
    socket.router_handover = True
    _prepare(socket)
    return socket


def bind(socket: zmq.Socket[bytes], address: str) -> None:
    """Bind; an IPv4 address stays one in LAST_ENDPOINT, where an IPv6 socket would turn it into ::ffff:a.b.c.d.

    Raises:
        zmq.ZMQError: the address is in use or not of this machine.
    """
    socket.ipv6 = "[" in address
    socket.bind(address)


def dealer(context: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes, access: Access) -> zmq.Socket[bytes]:
    """A DEALER connected to `address`; reconnects by itself."""
    socket = _dealer(context, identity, access)
    socket.connect(address)
    return socket


def watched_dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes, access: Access
) -> tuple[zmq.Socket[bytes], AuthWatch]:
    """The same, and whether the other side refuses the token: watched from before the first attempt, the only one."""
    socket = _dealer(context, identity, access)
    watch = AuthWatch(socket)
    socket.connect(address)
    return socket, watch


def _dealer(context: zmq.Context[zmq.Socket[bytes]], identity: bytes, access: Access) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.identity = identity
    access.present(socket)
    _prepare(socket)
    return socket


def _prepare(socket: zmq.Socket[bytes]) -> None:
    socket.linger = 0
    socket.sndhwm = 0
    socket.rcvhwm = 0
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
    socket.ipv6 = True
    socket.heartbeat_ivl = 5000  # notices a tcp peer whose host vanished without a FIN
    socket.heartbeat_timeout = 15000


class AuthWatch:
    """Tells whether the peer of a connecting socket refused its token (only the socket's monitor knows)."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.refused = asyncio.Event()
        self.cause = ""
        self._watched = socket
        self._closed_on = 0
        refusals = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        monitor = socket.get_monitor_socket(refusals | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self._channel = Channel(monitor, self._on_event)
        self._monitor = monitor

    def _on_event(self, frames: Frames) -> None:
        event = parse_monitor_message([bytes(frame.buffer) for frame in frames])["event"]
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.cause = "--omni-token differs from the master's"
            self.refused.set()
            return
        self._closed_on += 1  # a master that ends just now does that, too, but not again and again
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or self._closed_on >= _CLOSED_ON:
            self.cause = "--omni-token or --omni-encrypt differs from the master's"
            self.refused.set()

    def close(self) -> None:
        self._watched.disable_monitor()
        self._channel.close()


def is_loopback(host: str) -> bool:
    """True when `host` names only this machine."""
    return host in ("localhost", "::1") or host.startswith("127.")


def listen_address(host: str, port: int | str) -> str:
    """The endpoint to bind for `host`, which may be a name: ZeroMQ binds only addresses.

    Raises:
        OSError: the name does not resolve.
    """
    *_, target = stdlib_socket.getaddrinfo(host, None, type=stdlib_socket.SOCK_STREAM)[0]
    return tcp_address(str(target[0]), port)


def tcp_address(host: str, port: int | str) -> str:
    """ZeroMQ's form of a tcp endpoint; IPv6 literals get their brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def local_address_towards(host: str, port: int) -> str:
    """The address of this machine on the route to `host` (a UDP connect sends nothing)."""
    family, _, _, _, target = stdlib_socket.getaddrinfo(host, port, type=stdlib_socket.SOCK_DGRAM)[0]
    with stdlib_socket.socket(family, stdlib_socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
