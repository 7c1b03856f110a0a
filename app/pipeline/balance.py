"""Which of several replicas gets a request: one policy a stage, and a slow start for replicas that have just come."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from app.cluster.messages import ReplicaInfo
from app.pipeline.session import session_of
from app.settings.schema import LoadBalancing

SLOW_START_S = 10.0
"""A replica that comes to others gets its full share of the requests after so long; its share grows evenly."""
_FIRST_SHARE = 0.1
_OVERLOAD = 1.25
"""How much more than its share of the load a replica may hold before its sessions go elsewhere."""


class Candidate(Protocol):
    """A replica as the choice sees it; `fresh_s` is how long it has been here, infinite for one of the first."""

    @property
    def info(self) -> ReplicaInfo: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def fresh_s(self) -> float: ...


C = TypeVar("C", bound=Candidate)


class Balancer:
    """Picks a replica by `policy`; the choices of one seed are always the same."""

    def __init__(self, policy: LoadBalancing, seed: int | None = None) -> None:
        self._random = Random(seed)
        self._turn = 0
        self._policy = policy

    def choose(self, candidates: Sequence[C], body: bytes = b"") -> C:
        """One of the candidates, of which there is at least one, for a request with this body."""
        ready = self._warm(candidates)
        match self._policy:
            case "random":
                return self._random.choice(ready)
            case "round-robin":
                return self._next(ready)
            case "least-queue-length":
                return self._least_busy(ready)
            case "session-affinity":
                return self._same(ready, session_of(body))

    def _warm(self, candidates: Sequence[C]) -> Sequence[C]:
        """Without some of those that have just come: each is left in as often as its share says."""
        shares = [_share(x.fresh_s) for x in candidates]
        if (most := max(shares)) == min(shares):
            return candidates
        return [x for x, share in zip(candidates, shares, strict=True) if share >= most * self._random.random()]

    def _next(self, candidates: Sequence[C]) -> C:
        self._turn += 1
        return sorted(candidates, key=lambda x: x.info.replica_id)[self._turn % len(candidates)]

    def _least_busy(self, candidates: Sequence[C]) -> C:
        """Fewest requests of our own; among equals the shortest reported queue (other API workers fill it too)."""

        def busy(candidate: C) -> tuple[int, int, float]:
            load = candidate.info.load
            return candidate.in_flight, load.running + load.waiting, self._random.random()

        return min(candidates, key=busy)

    def _same(self, candidates: Sequence[C], session: bytes) -> C:
        """The first replica in the session's own order that has room: consistent hashing with bounded loads.

        The order depends on nothing but session and replicas, so all API workers agree on it, and a replica that comes
        or goes moves no sessions but its own.
        """
        if not session:
            return self._least_busy(candidates)
        limit = math.ceil(_OVERLOAD * (sum(x.in_flight for x in candidates) + 1) / len(candidates))
        order = sorted(candidates, key=lambda x: _rank(session, x.info))
        return next((x for x in order if x.in_flight < limit), order[0])


def _share(fresh_s: float) -> float:
    return min(1.0, _FIRST_SHARE + (1 - _FIRST_SHARE) * fresh_s / SLOW_START_S)


def _rank(session: bytes, info: ReplicaInfo) -> bytes:
    return hashlib.blake2b(session + f"|{info.address}".encode(), digest_size=8).digest()
