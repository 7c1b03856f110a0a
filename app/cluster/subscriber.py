"""An API worker's line to the master: it hears of every change of the replicas, and of the master's death."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import zmq

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.pidfd import PidWatch
from app.cluster.transport import Channel, Frames, dealer

logger = logging.getLogger("app.cluster")


class Subscriber:
    """Subscribes to the registry at `address`; `on_membership` gets each Membership, `on_lost` the master's death."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        access: Access,
        client_id: str,
        on_membership: Callable[[m.Membership], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._context = context
        self._address = address
        self._access = access
        self._client_id = client_id
        self._on_membership = on_membership
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._watch: PidWatch | None = None
        self._version = 0

    def connect(self) -> None:
        """Subscribe, also anew after the master has been replaced."""
        self.close()
        identity = f"{self._client_id}.{os.urandom(4).hex()}".encode()
        self._channel = Channel(dealer(self._context, self._address, identity, self._access), self._on_message)
        self._channel.send([m.encode(m.Subscribe(m.PROTOCOL, self._client_id, os.getpid()))])

    def tell(self, message: m.Message) -> None:
        """Send the master a message; lost when there is no master."""
        if self._channel is not None:
            self._channel.send([m.encode(message)])

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._version = 0

    def _on_message(self, frames: Frames) -> None:
        match m.decode_registry(frames[0].buffer):
            case m.Membership() as membership:
                if self._watch is None:
                    self._watch = PidWatch(membership.master_pid, self._master_died)
                if membership.version >= self._version:
                    self._version = membership.version
                    self._on_membership(membership)
            case m.Refused(reason):
                logger.error("the master refused this API worker: %s", reason)
            case other:
                logger.error("unexpected %s from the master", type(other).__name__)

    def _master_died(self) -> None:
        self._watch = None
        self._on_lost()
