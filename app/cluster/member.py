"""One replica in the master's table: what it has reported, and when it counts as dead."""

from __future__ import annotations

import time

from app.cluster import messages as m
from app.settings.schema import MasterConfig

LIVE: tuple[m.ReplicaState, ...] = ("up", "draining", "suspect")


class Member:
    """One registered replica. `seen` is when it was heard last, `moved` when its engine made a step or had no work."""

    def __init__(self, identity: bytes, register: m.Register, replica_id: int) -> None:
        self.identity = identity
        self.seen = self.moved = time.monotonic()
        self.ready = False
        self.info = m.ReplicaInfo(
            stage_id=register.stage_id,
            replica_id=replica_id,
            address=register.address,
            state="starting",
            host=register.host,
            pid=register.pid,
            load=m.Load(),
            capabilities=m.Capabilities(),
            version=register.version,
            engine=register.engine,
            since=time.time(),
        )

    @property
    def key(self) -> tuple[int, int]:
        """(stage_id, replica_id)"""
        return self.info.stage_id, self.info.replica_id

    def start(self, capabilities: m.Capabilities) -> None:
        """Its engine has started, now or under an earlier master."""
        self.info.capabilities, self.ready = capabilities, True
        self._enter("up")

    def report(self, heartbeat: m.Heartbeat) -> None:
        """Take over what a heartbeat says."""
        info = self.info
        if heartbeat.load.running == 0 or heartbeat.load.steps != info.load.steps:
            self.moved = time.monotonic()
        # What registers anew is up before its Ready says what it can do, and who leaves does not come back.
        if heartbeat.state != "up" or (self.ready and info.state != "draining"):
            self._enter(heartbeat.state)
        info.load = heartbeat.load

    def drain(self) -> None:
        """It is told to leave."""
        if self.info.state in LIVE:
            self._enter("draining")

    def judge(self, master: MasterConfig, now: float) -> str:
        """Why it counts as dead, or an empty string; marks it as suspect on the way there.

        Loading or compiling can keep a process from sending anything for as long as it takes: that is no silence.
        """
        silent = now - self.seen
        if silent > (master.heartbeat_timeout if self.info.state != "starting" else self._load_limit(master)):
            return f"no heartbeat for {silent:.0f} s"
        if self.info.state in LIVE and now - self.moved > master.stall_timeout:
            return f"requests run there, but its engine made no step for {master.stall_timeout:g} s"
        if silent > 3 * master.heartbeat_period and self.info.state == "up":
            self._enter("suspect")
        return ""

    @staticmethod
    def _load_limit(master: MasterConfig) -> float:
        return max(master.heartbeat_timeout, master.stage_init_timeout)

    def _enter(self, state: m.ReplicaState) -> None:
        if self.info.state != state:
            self.info.state, self.info.since = state, time.time()
