"""When the master gives a replica up: by silence, or by an engine that has work and makes no step."""

from __future__ import annotations

import pytest

from app.cluster import messages as m
from app.cluster.member import Member
from app.settings.schema import MasterConfig

MASTER = MasterConfig(heartbeat_s=1, heartbeat_timeout=30, stall_timeout=60)


def member() -> Member:
    one = Member(b"id", m.Register(m.PROTOCOL, "1", "model", 0, 0, "digest", "ipc://x", "host", 1), 0)
    one.info.state, one.ready = "up", True
    return one


@pytest.mark.parametrize(
    ("silent_s", "state", "reason"),
    [(0, "up", ""), (2, "up", ""), (4, "suspect", ""), (31, "up", "no heartbeat for 31 s")],
)
def test_silence(silent_s: float, state: m.ReplicaState, reason: str) -> None:
    one = member()
    assert one.judge(MASTER, one.seen + silent_s) == reason
    assert one.info.state == state


def test_a_heartbeat_clears_the_suspicion() -> None:
    one = member()
    one.judge(MASTER, one.seen + 4)
    one.report(m.Heartbeat("up", 1, m.Load()))
    assert one.info.state == "up"


def test_only_work_without_a_step_is_a_stall() -> None:
    one = member()
    for load in (m.Load(0, 0, 5), m.Load(1, 0, 5), m.Load(1, 0, 6)):
        one.moved = 0.0
        one.report(m.Heartbeat("up", 1, load))
        stuck = load == m.Load(1, 0, 5)
        assert (one.moved == 0.0) is stuck
    one.seen = one.moved + 61
    assert "made no step for 60 s" in one.judge(MASTER, one.moved + 61)


@pytest.mark.parametrize(("silent_s", "reason"), [(31, ""), (590, ""), (601, "no heartbeat for 601 s")])
def test_loading_is_neither_a_stall_nor_silence(silent_s: float, reason: str) -> None:
    """It may keep the process from everything else; --stage-init-timeout is its limit."""
    one = member()
    one.info.state = "starting"
    assert one.judge(MASTER, one.seen + silent_s) == reason
    assert one.info.state == "starting"


def test_who_was_told_to_leave_does_not_come_back() -> None:
    one = member()
    before = one.info.since = 1.0
    one.drain()
    one.report(m.Heartbeat("up", 1, m.Load()))
    assert one.info.state == "draining"
    assert one.info.since > before


def test_the_time_of_a_state_is_that_of_its_beginning() -> None:
    one = member()
    one.info.since = 1.0
    one.report(m.Heartbeat("up", 1, m.Load()))
    assert one.info.since == 1.0
    one.judge(MASTER, one.seen + 4)
    assert one.info.since > 1.0


def test_several_heartbeats_fit_into_the_silence_that_nobody_survives() -> None:
    assert MasterConfig(heartbeat_s=1, heartbeat_timeout=30).heartbeat_period == 1
    assert MasterConfig(heartbeat_s=1, heartbeat_timeout=1.5).heartbeat_period == 0.5
