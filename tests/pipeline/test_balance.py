"""Which replica gets a request: by policy, for one session, after a start; and what the slowest answers are then."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.local import LocalReplica
from app.pipeline.balance import SLOW_START_S, Balancer
from app.pipeline.orchestrator import Orchestrator
from app.settings.schema import LoadBalancing
from tests.clusters import body, read, replica_spec, running_registry, settings, text_of

POLICIES: tuple[LoadBalancing, ...] = ("random", "round-robin", "least-queue-length", "session-affinity")
SEED = 7


class Replica:
    """A candidate of which nothing but its numbers exists."""

    def __init__(self, number: int, speed: float = 1.0) -> None:
        self.info = m.ReplicaInfo(
            0, number, f"tcp://10.0.0.{number}:9", "up", "", number, m.Load(), m.Capabilities(["chat"])
        )
        self.in_flight = 0
        self.fresh_s = math.inf
        self.speed = speed
        self.free_at = 0.0


def latencies(policy: LoadBalancing, replicas: Sequence[Replica], requests: int, load: float) -> list[float]:
    """Requests at random moments, `load` of what all replicas can do together; each does one after the other."""
    random, balancer = Random(SEED), Balancer(policy, SEED)
    rate = load * sum(replica.speed for replica in replicas)
    now, done, ends = 0.0, [], list[tuple[float, int, float]]()
    for _ in range(requests):
        now += random.expovariate(rate)
        while ends and ends[0][0] <= now:
            end, number, began = heapq.heappop(ends)
            replicas[number].in_flight -= 1
            done.append(end - began)
        chosen = balancer.choose(replicas)
        chosen.in_flight += 1
        chosen.free_at = max(chosen.free_at, now) + random.expovariate(chosen.speed)
        heapq.heappush(ends, (chosen.free_at, chosen.info.replica_id, now))
    return sorted(done + [end - began for end, _, began in ends])


def p99(times: list[float]) -> float:
    return times[int(len(times) * 0.99)]


def test_of_64_replicas_of_unequal_speed_the_shortest_queue_beats_chance() -> None:
    slowest = {
        policy: p99(latencies(policy, [Replica(i, 0.5 + i % 4) for i in range(64)], 6000, 0.7))
        for policy in ("random", "round-robin", "least-queue-length")
    }
    assert slowest["least-queue-length"] * 5 < min(slowest["random"], slowest["round-robin"]), slowest


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_gives_everybody_something(policy: LoadBalancing) -> None:
    balancer, replicas = Balancer(policy, SEED), [Replica(i) for i in range(4)]
    shares = Counter(
        balancer.choose(replicas, json.dumps({"user": f"u{i}"}).encode()).info.replica_id for i in range(400)
    )
    assert shares.keys() == {0, 1, 2, 3}
    assert min(shares.values()) > 50


def test_the_reported_queue_decides_among_equals() -> None:
    idle, busy = Replica(0), Replica(1)
    busy.info.load = m.Load(running=1, waiting=3)
    balancer = Balancer("least-queue-length", SEED)
    assert {balancer.choose([busy, idle]).info.replica_id for _ in range(20)} == {0}
    idle.in_flight = 1
    assert balancer.choose([busy, idle]) is busy


async def answers_in_time(path: Path, policy: LoadBalancing) -> tuple[list[float], list[int]]:
    """Three replicas, one of which takes eight times as long: seconds until each answer, and who gave them."""
    config = settings(replicas=3, token_s=0.02, slots=1)
    config.stages[0].lb_policy = policy
    os.mkdir(path)
    async with running_registry(path, config) as registry:
        replicas = []
        for number, pace in enumerate(("1", "1", "8")):
            spec = replica_spec(path, config, number)
            spec.stage = msgspec.structs.replace(spec.stage, env={"STUB_PACE": pace})
            replicas.append(LocalReplica(spec))
        orchestrator = Orchestrator(config, f"ipc://{path}/registry.sock")
        try:
            await asyncio.gather(*(replica.spawn() for replica in replicas))
            await asyncio.gather(*(registry.wait_up((0, number)) for number in range(3)))
            await orchestrator.start()
            assert await orchestrator.wait_ready(20)
            times = await asyncio.gather(*(timed(orchestrator, f"r{i}", i * 0.02) for i in range(60)))
            counts = [info.load.steps for info in orchestrator.membership.replicas]
            return sorted(times), counts
        finally:
            await orchestrator.stop()
            await asyncio.gather(*(replica.stop(1) for replica in replicas))


async def timed(orchestrator: Orchestrator, request_id: str, delay_s: float) -> float:
    await asyncio.sleep(delay_s)
    began = time.monotonic()
    assert text_of(await read(await orchestrator.submit("chat", request_id, body(request_id)))) == f"{request_id} "
    return time.monotonic() - began


async def test_of_three_real_replicas_the_slow_one_gets_what_it_can_do(tmp_path: Path) -> None:
    by_queue, served = await answers_in_time(tmp_path / "queue", "least-queue-length")
    by_chance, _ = await answers_in_time(tmp_path / "chance", "random")
    assert served[2] * 2 < min(served[:2]), served
    assert p99(by_queue) < p99(by_chance), (p99(by_queue), p99(by_chance))


# ------------------------------------------------------------------------------------------------ sessions


def of_session(name: str) -> bytes:
    return json.dumps({"prompt_cache_key": name, "messages": []}).encode()


def test_a_session_stays_where_it_is_whoever_comes_or_goes_beside_it() -> None:
    replicas = [Replica(i) for i in range(8)]
    sessions = [of_session(f"s{i}") for i in range(200)]

    def homes(present: list[Replica]) -> list[int]:
        balancer = Balancer("session-affinity")
        return [balancer.choose(present, session).info.replica_id for session in sessions]

    before = homes(replicas)
    assert before == homes(replicas[::-1]), "every API worker finds the same"
    assert len(set(before)) == 8
    without = homes(replicas[:3] + replicas[4:])
    assert [(x, y) for x, y in zip(before, without, strict=True) if x != 3 and x != y] == []


def test_a_popular_session_spills_over() -> None:
    replicas = [Replica(i) for i in range(4)]
    balancer = Balancer("session-affinity", SEED)
    for _ in range(100):
        balancer.choose(replicas, of_session("everybody's")).in_flight += 1
    counts = [replica.in_flight for replica in replicas]
    assert sum(counts) == 100
    assert max(counts) <= math.ceil(1.25 * 100 / 4) + 1


def test_without_a_session_it_is_the_shortest_queue() -> None:
    replicas = [Replica(i) for i in range(3)]
    replicas[0].in_flight = replicas[1].in_flight = 1
    assert Balancer("session-affinity").choose(replicas, b"no JSON") is replicas[2]


# ------------------------------------------------------------------------------------------------ slow start


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fresh_replica_gets_its_share_little_by_little(policy: LoadBalancing) -> None:
    def share(fresh_s: float) -> float:
        replicas = [Replica(0), Replica(1)]
        replicas[1].fresh_s = fresh_s
        balancer = Balancer(policy, SEED)
        picks = [balancer.choose(replicas, json.dumps({"user": f"u{i}"}).encode()).info.replica_id for i in range(2000)]
        return picks.count(1) / len(picks)

    just_come, half_way, long_here = share(0.0), share(SLOW_START_S / 2), share(math.inf)
    assert just_come < 0.13
    assert just_come < half_way < long_here
    assert long_here > 0.4


def test_replicas_that_came_together_share_from_the_beginning() -> None:
    replicas = [Replica(i) for i in range(3)]
    for replica in replicas:
        replica.fresh_s = 1.0
    balancer = Balancer("least-queue-length", SEED)
    for _ in range(30):
        balancer.choose(replicas).in_flight += 1
    assert [replica.in_flight for replica in replicas] == [10, 10, 10]
