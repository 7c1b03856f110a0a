"""Which replicas a pool knows, and which of them it picks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.transport import new_context
from app.pipeline.connection import Connection, ReplicaLostError
from app.pipeline.pool import StagePool
from app.settings.schema import LoadBalancing
from tests.clusters import settings

CAN_CHAT = m.Capabilities(["chat"], 100, ["text"], ["text"], 8)
NOBODY: set[tuple[str, int]] = set()


def info(replica_id: int = 0, **changes: Any) -> m.ReplicaInfo:
    """A replica at an address where nobody listens: connecting is all that these tests do."""
    base = m.ReplicaInfo(
        stage_id=0,
        replica_id=replica_id,
        address=f"ipc:///nowhere/r0-{replica_id}.sock",
        state="up",
        host="here",
        pid=100 + replica_id,
        load=m.Load(),
        capabilities=CAN_CHAT,
    )
    return msgspec.structs.replace(base, **changes)


class Pools:
    """Makes pools and closes them at the end."""

    def __init__(self) -> None:
        self._context = new_context()
        self._made: list[StagePool] = []

    def __call__(self, *replicas: m.ReplicaInfo, policy: LoadBalancing = "least-queue-length") -> StagePool:
        stage = settings().stages[0]
        stage.lb_policy = policy
        pool = StagePool(stage, self._context, "client", Access())
        self._made.append(pool)
        pool.update(list(replicas))
        return pool

    def close(self) -> None:
        for pool in self._made:
            pool.close()
        self._context.term()


@pytest.fixture
def pools(event_loop_is_running: None) -> Iterator[Pools]:
    made = Pools()
    yield made
    made.close()


@pytest.fixture
async def event_loop_is_running() -> None:
    """Sockets belong to a running loop."""


def picked(pool: StagePool, tried: set[tuple[str, int]] = NOBODY) -> int | None:
    connection = pool.pick(tried)
    return None if connection is None else connection.info.replica_id


def submit(connection: Connection, request_id: str = "r") -> Any:
    return connection.submit(m.Submit(request_id, "chat"), b"")


async def test_least_queue_counts_our_own_requests_first(pools: Pools) -> None:
    pool = pools(info(0, load=m.Load(9, 9)), info(1))
    assert picked(pool) == 1
    stream = submit(pool.connections[1])
    assert picked(pool) == 0
    pool.connections[1].release(stream)
    assert picked(pool) == 1


async def test_least_queue_spreads_equals(pools: Pools) -> None:
    pool = pools(*map(info, range(3)))
    assert set(Counter(picked(pool) for _ in range(200))) == {0, 1, 2}


async def test_a_burst_is_spread_evenly(pools: Pools) -> None:
    pool = pools(*map(info, range(4)))
    for number in range(40):
        connection = pool.pick(NOBODY)
        assert connection is not None
        submit(connection, f"r{number}")
    assert [x.in_flight for x in pool.connections] == [10] * 4


async def test_round_robin_takes_turns(pools: Pools) -> None:
    pool = pools(*map(info, range(3)), policy="round-robin")
    turns = [picked(pool) for _ in range(6)]
    assert sorted(turns[:3]) == [0, 1, 2]  # type: ignore[type-var]
    assert turns[:3] == turns[3:]


async def test_random_reaches_all(pools: Pools) -> None:
    pool = pools(*map(info, range(3)), policy="random")
    assert set(Counter(picked(pool) for _ in range(200))) == {0, 1, 2}


@pytest.mark.parametrize("policy", ["random", "round-robin", "least-queue-length"])
async def test_what_was_tried_is_not_picked_again(pools: Pools, policy: LoadBalancing) -> None:
    pool = pools(info(0), info(1), policy=policy)
    first = pool.pick(NOBODY)
    assert first is not None
    second = pool.pick({first.replica})
    assert second is not None
    assert second is not first
    assert pool.pick({first.replica, second.replica}) is None


async def test_replicas_of_two_hosts_may_share_a_pid(pools: Pools) -> None:
    pool = pools(info(0, pid=7, address="tcp://10.0.0.1:9"), info(1, pid=7, address="tcp://10.0.0.2:9"))
    first = pool.pick(NOBODY)
    assert first is not None
    assert picked(pool, {first.replica}) == 1 - first.info.replica_id


@pytest.mark.parametrize(
    ("state", "connected"),
    [("starting", False), ("up", True), ("suspect", True), ("draining", True), ("down", False)],
)
async def test_only_who_is_up_is_picked_but_what_runs_elsewhere_goes_on(
    pools: Pools, state: m.ReplicaState, connected: bool
) -> None:
    pool = pools(info(state=state))
    assert (len(pool.connections) == 1) is connected
    assert pool.ready is (state == "up")
    assert (picked(pool) == 0) is (state == "up")


async def test_a_replica_that_refused_because_it_leaves_is_not_picked_before_the_master_says_so(pools: Pools) -> None:
    pool = pools(info(0), info(1))
    leaving = pool.connections[0]
    leaving.leaves()
    assert {picked(pool) for _ in range(20)} == {1}
    pool.update([info(0, state="draining"), info(1)])
    assert pool.connections[0] is leaving


async def test_a_change_of_state_keeps_the_connection_and_its_streams(pools: Pools) -> None:
    pool = pools(info())
    (connection,) = pool.connections
    submit(connection)
    pool.update([info(state="draining", load=m.Load(1, 2, 3))])
    assert pool.connections == [connection]
    assert (connection.in_flight, connection.info.load) == (1, m.Load(1, 2, 3))


@pytest.mark.parametrize("after", [[], [info(pid=4242)], [info(address="ipc:///nowhere/else.sock")]])
async def test_streams_of_a_replica_that_is_gone_or_another_process_are_lost(
    pools: Pools, after: list[m.ReplicaInfo]
) -> None:
    pool = pools(info())
    stream = submit(pool.connections[0])
    pool.update(after)
    with pytest.raises(ReplicaLostError):
        await asyncio.wait_for(stream.next_batch(), 1)
    assert [x.info for x in pool.connections] == after


async def test_what_it_can_do_is_known_while_all_are_down(pools: Pools) -> None:
    pool = pools(info())
    pool.update([])
    assert pool.capabilities == CAN_CHAT
    assert (pool.ready, picked(pool)) == (False, None)


async def test_a_lost_master_takes_its_own_replicas_along_and_leaves_the_remote_ones(pools: Pools) -> None:
    local, remote = info(0), info(1, address="tcp://10.0.0.1:9")
    pool = pools(local, remote)
    streams = [submit(connection) for connection in pool.connections]
    pool.lose_local()
    with pytest.raises(ReplicaLostError):
        await asyncio.wait_for(streams[0].next_batch(), 1)
    pool.update([])  # the new master has not heard of anybody yet
    assert [x.info for x in pool.connections] == [remote]
    pool.update([info(0, pid=1), remote])
    assert pool.connections[0].in_flight == 1
    assert len(pool.connections) == 2
