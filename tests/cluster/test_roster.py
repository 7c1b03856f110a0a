"""Ids of replicas, and how long those that are down are listed."""

from __future__ import annotations

import pytest

from app.cluster import messages as m
from app.cluster import roster as module
from app.cluster.member import Member
from app.cluster.roster import Roster


def member(replica_id: int, address: str = "", identity: bytes = b"") -> Member:
    address = address or f"tcp://10.0.0.{replica_id}:9"
    return Member(
        identity or bytes([replica_id]), m.Register(m.PROTOCOL, "1", "m", 0, -1, "d", address, "host", 1), replica_id
    )


def states(roster: Roster) -> list[tuple[int, str]]:
    return [(x.replica_id, x.state) for x in roster.infos()]


def test_ids_of_local_replicas_are_theirs_before_they_come() -> None:
    roster = Roster()
    roster.reserve((0, 0))
    roster.reserve((0, 1))
    assert roster.free_id(0) == 2
    assert roster.free_id(1) == 0
    roster.add(member(2))
    assert roster.free_id(0) == 3
    roster.free((0, 1))
    assert roster.free_id(0) == 1


def test_a_replica_keeps_its_id_under_another_master() -> None:
    roster = Roster()
    roster.add(member(3))
    assert roster.free_id(0, "tcp://10.0.0.3:9") == 3
    assert roster.free_id(0, "tcp://10.0.0.7:9", before=7) == 7
    assert roster.free_id(0, "tcp://10.0.0.7:9", before=3) == 0, "somebody has it by now"


def test_who_is_gone_is_listed_with_the_reason() -> None:
    roster = Roster()
    roster.reserve((0, 0))
    for number in range(4):
        roster.add(member(number))
    roster.drop((0, 0), "")
    roster.drop((0, 1), "no heartbeat for 30 s")
    roster.drop((0, 2), "")
    assert states(roster) == [(0, "down"), (1, "down"), (3, "starting")], "a local one comes again; 2 left on purpose"
    roster.drop((0, 0), "killed by SIGKILL")
    assert [x.note for x in roster.infos()] == ["killed by SIGKILL", "no heartbeat for 30 s", ""]
    assert roster.of(bytes([1])) is None
    assert roster.states(0) == {"down": 2, "starting": 1}


def test_who_comes_back_is_not_down(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = Roster()
    roster.reserve((0, 1))
    for number in (1, 2):
        roster.add(member(number))
        roster.drop((0, number), "lost")
    roster.add(member(2, identity=b"another connection"))
    assert states(roster) == [(1, "down"), (2, "starting")]
    monkeypatch.setattr(module, "FORGET_S", -1.0)
    roster.forget_old()
    assert states(roster) == [(1, "down"), (2, "starting")], "local ones are never forgotten"
    roster.drop((0, 2), "lost")
    roster.forget_old()
    assert states(roster) == [(1, "down")]


def test_a_second_connection_of_a_replica_takes_the_place_of_the_first() -> None:
    roster = Roster()
    roster.add(member(0, identity=b"first"))
    roster.add(member(0, identity=b"second"))
    assert len(roster) == 1
    assert roster.of(b"first") is None
    assert roster.of(b"second") is roster.at("tcp://10.0.0.0:9") is roster.get((0, 0))
