"""Who belongs to the server: the replicas that have registered, the ids they go by, and those that are down."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import ValuesView

import msgspec

from app.cluster import messages as m
from app.cluster.member import Member

Key = tuple[int, int]
"""(stage_id, replica_id)"""

FORGET_S = 600.0
"""How long a lost replica of another host is listed as down."""


class Roster:
    """Replicas by key. A *reserved* key belongs to a local replica, whether it runs or not."""

    def __init__(self) -> None:
        self._members: dict[Key, Member] = {}
        self._keys: dict[bytes, Key] = {}
        self._down: dict[Key, m.ReplicaInfo] = {}
        self._reserved: set[Key] = set()

    def __len__(self) -> int:
        return len(self._members)

    def values(self) -> ValuesView[Member]:
        """All that are there, those that are down not among them."""
        return self._members.values()

    def add(self, member: Member) -> None:
        """A replica registers, or does so again; one that went by its key before is replaced."""
        key = member.key
        if before := self._members.get(key):
            del self._keys[before.identity]
        member.info.local = key in self._reserved
        self._members[key] = member
        self._keys[member.identity] = key
        self._down.pop(key, None)

    def of(self, identity: bytes) -> Member | None:
        """The replica that speaks over this connection."""
        key = self._keys.get(identity)
        return None if key is None else self._members[key]

    def at(self, address: str) -> Member | None:
        """The replica that listens there."""
        return next((x for x in self._members.values() if x.info.address == address), None)

    def drop(self, key: Key, reason: str) -> Member | None:
        """A replica is gone. With a `reason` it stays listed as down; without, only where it will be started again."""
        member = self._members.pop(key, None)
        if member is not None:
            del self._keys[member.identity]
            if reason or key in self._reserved:
                self._down[key] = msgspec.structs.replace(
                    member.info, state="down", since=time.time(), note=reason, load=m.Load()
                )
        elif key in self._down and reason:
            self._down[key].note = reason
        return member

    def reserve(self, key: Key) -> None:
        """A local replica of this key is about to be started."""
        self._reserved.add(key)

    def free(self, key: Key) -> None:
        """There is no local replica of this key any more."""
        self._reserved.discard(key)
        self._down.pop(key, None)

    def get(self, key: Key) -> Member | None:
        """The replica that goes by this key."""
        return self._members.get(key)

    def taken(self, register: m.Register) -> str:
        """Why it cannot have the id that it asks for, in words for its operator; "" if it can.

        One that its operator has numbered takes the place of one that has been silent, as its host may be gone.
        """
        stage_id, replica_id = key = register.stage_id, register.asked_id
        living = self._members.get(key)
        if living is not None and living.info.address != register.address:
            info = living.info
            if register.wanted < 0 or info.state != "suspect":
                return f"there is a replica {replica_id} of stage {stage_id}: process {info.pid} on {info.host}"
        if register.wanted >= 0 and key in self._reserved:
            return f"replica {replica_id} of stage {stage_id} is one of the server's own: choose another --replica-id"
        return ""

    def free_id(self, stage_id: int, address: str = "", before: int = -1) -> int:
        """The id of the replica at this address, here or under an earlier master; else the lowest that nobody has."""
        # Not by host and pid: two containers on one host can have the same.
        known = self.at(address)
        if known is not None and known.info.stage_id == stage_id:
            return known.info.replica_id
        taken = {replica for stage, replica in (*self._members, *self._reserved) if stage == stage_id}
        if before >= 0 and before not in taken:
            return before
        return next(i for i in range(len(taken) + 1) if i not in taken)

    def states(self, stage_id: int) -> Counter[m.ReplicaState]:
        """How many replicas of a stage are in each state."""
        return Counter(x.state for x in self.infos() if x.stage_id == stage_id)

    def infos(self) -> list[m.ReplicaInfo]:
        """All replicas, those that are down among them, by key."""
        infos = {key: member.info for key, member in self._members.items()} | self._down
        return [infos[key] for key in sorted(infos)]

    def forget_old(self) -> None:
        """Replicas of other hosts that have been down for long are not expected back."""
        limit = time.time() - FORGET_S
        for key, info in list(self._down.items()):
            if key not in self._reserved and info.since < limit:
                del self._down[key]
