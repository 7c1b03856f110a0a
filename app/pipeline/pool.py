"""The replicas of one stage as an API worker sees them, and the choice among them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import zmq

from app.cluster import messages as m
from app.pipeline.connection import Connection
from app.settings.schema import LoadBalancing, StageConfig

_REREGISTER_S = 10.0
"""How long remote replicas have to register with a new master."""

Choose = Callable[[list[Connection]], Connection]


class StagePool:
    """Connections to the live replicas of one stage."""

    def __init__(
        self,
        stage: StageConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        client_id: str,
        token: str,
        policy: LoadBalancing,
    ) -> None:
        self.stage = stage
        self.capabilities = m.Capabilities()
        self._context = context
        self._client_id = client_id
        self._token = token
        self._choose = chooser(policy)
        self._connections: dict[tuple[int, str], Connection] = {}
        self._patient_until = 0.0

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    @property
    def ready(self) -> bool:
        return any(connection.accepts for connection in self._connections.values())

    def update(self, replicas: list[m.ReplicaInfo]) -> None:
        """Take over the master's list: connect to new replicas, let go of those that are gone."""
        wanted = {(x.replica_id, x.address): x for x in replicas if x.state in ("up", "draining", "suspect")}
        # Remote replicas outlive a master; until they have registered with its successor, keep what runs on them.
        # A restarted replica listens at the same address under another pid: its predecessor's streams are lost.
        for key, connection in list(self._connections.items()):
            info = wanted.get(key)
            if info is None and time.monotonic() < self._patient_until and not connection.local:
                continue
            if info is None or info.pid != connection.info.pid:
                self._drop(key)
        for key, info in wanted.items():
            known = self._connections.get(key)
            if known is None:
                self._connections[key] = Connection(self._context, info, self._client_id, self._token)
                self.capabilities = info.capabilities
            else:
                known.info = info

    def lose_local(self) -> None:
        """The master died, and its replicas die with it: fail their requests now."""
        self._patient_until = time.monotonic() + _REREGISTER_S
        for key, connection in list(self._connections.items()):
            if connection.local:
                self._drop(key)

    def _drop(self, key: tuple[int, str]) -> None:
        self._connections.pop(key).close()

    def pick(self, tried: set[tuple[str, int]]) -> Connection | None:
        """A replica for a new request, none of `tried` (Connection.replica); None when there is none."""
        candidates = [x for x in self._connections.values() if x.accepts and x.replica not in tried]
        return self._choose(candidates) if candidates else None

    def holder(self, instance: str) -> Connection | None:
        """The connection to the engine of that name (Capabilities.instance), if it lives."""
        found = (x for x in self._connections.values() if x.info.capabilities.instance == instance)
        return next(found, None)

    def ping(self) -> None:
        for connection in self._connections.values():
            connection.ping()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class Holder:
    """One replica in the place of its pool: for requests about what only this one holds."""

    def __init__(self, pool: StagePool, connection: Connection) -> None:
        self.stage = pool.stage
        self._connection = connection

    def pick(self, tried: set[tuple[str, int]]) -> Connection | None:
        """The replica, as long as it has not been tried; draining it still answers for what it holds."""
        return None if self._connection.replica in tried else self._connection


def chooser(policy: LoadBalancing) -> Choose:
    """The function that picks one of several replicas."""
    match policy:
        case "random":
            return random.choice
        case "round-robin":
            return _RoundRobin()
        case "least-queue-length":
            return _least_queue


def _least_queue(candidates: list[Connection]) -> Connection:
    """Fewest requests of our own; among equals the shortest reported queue (other API workers fill it too)."""

    def busy(connection: Connection) -> tuple[int, int, float]:
        load = connection.info.load
        return connection.in_flight, load.running + load.waiting, random.random()

    return min(candidates, key=busy)


class _RoundRobin:
    def __init__(self) -> None:
        self._turn = 0

    def __call__(self, candidates: list[Connection]) -> Connection:
        self._turn += 1
        return sorted(candidates, key=lambda x: x.info.replica_id)[self._turn % len(candidates)]
