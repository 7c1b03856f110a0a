"""The replicas of one stage as an API worker sees them, and the choice among them."""

from __future__ import annotations

import time

import zmq

from app.cluster import messages as m
from app.cluster.access import Access
from app.pipeline.balance import Balancer
from app.pipeline.connection import Connection
from app.protocol.errors import ApiError
from app.protocol.sleep import ASLEEP
from app.settings.schema import StageConfig

_REREGISTER_S = 10.0
"""How long remote replicas have to register with a new master."""


class StagePool:
    """Connections to the live replicas of one stage."""

    def __init__(
        self,
        stage: StageConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        client_id: str,
        access: Access,
    ) -> None:
        self.stage = stage
        self.capabilities = m.Capabilities()
        self._context = context
        self._client_id = client_id
        self._access = access
        self._balancer = Balancer(stage.lb_policy)
        self._connections: dict[tuple[int, str], Connection] = {}
        self._patient_until = 0.0
        self.asleep = False
        """It has given its memory back, and takes no requests."""

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
        others = self.ready
        for key, info in wanted.items():
            known = self._connections.get(key)
            if known is None:
                self._connections[key] = Connection(self._context, info, self._client_id, self._access, fresh=others)
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

    def pick(self, tried: set[tuple[str, int]], body: bytes = b"") -> Connection | None:
        """A replica for a new request, none of `tried` (Connection.replica); None when there is none.

        Raises:
            ApiError: 503, the stage sleeps.
        """
        if self.asleep:
            message = f"stage {self.stage.name} sleeps; an administrator wakes it with POST /v1/omni/wakeup"
            raise ApiError(503, message, code=ASLEEP, headers={"Retry-After": "10"})
        candidates = [x for x in self._connections.values() if x.accepts and x.replica not in tried]
        return self._balancer.choose(candidates, body) if candidates else None

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

    def pick(self, tried: set[tuple[str, int]], body: bytes = b"") -> Connection | None:
        """The replica, as long as it has not been tried; draining it still answers for what it holds."""
        return None if self._connection.replica in tried else self._connection
