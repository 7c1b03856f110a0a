from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from app.cluster import messages as m
from app.protocol.errors import ApiError
from app.settings.schema import StageConfig
from app.telemetry import families as f
from app.telemetry.metrics import Metrics
from app.telemetry.replicas import replica_samples
from app.telemetry.requests import EndReason, RequestMeter, reason_of


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def number(metrics: Metrics, family: f.Family, *labels: str) -> float:
    return metrics.collect()[family].get(labels, [0.0])[0]


def observations(metrics: Metrics, family: f.Family, *labels: str) -> tuple[float, float]:
    """Count and sum of a histogram."""
    *buckets, total = metrics.collect()[family].get(labels, [0.0])
    return sum(buckets), round(total, 6)


# ------------------------------------------------------------------------------------------------ several workers


def test_workers_add_up(tmp_path: Path) -> None:
    workers = [Metrics(tmp_path) for _ in range(3)]
    for count, worker in enumerate(workers, start=1):
        worker.value(f.PROMPT_TOKENS, "x").add(count)
        worker.histogram(f.END_TO_END, "x").observe(count)
    for worker in workers:
        assert number(worker, f.PROMPT_TOKENS, "x") == 6
        assert observations(worker, f.END_TO_END, "x") == (3, 6)


_VICTIM = """
import os, signal, sys
from pathlib import Path
from app.telemetry.metrics import Metrics
from app.telemetry.requests import RequestMeter
metrics = Metrics(Path(sys.argv[1]))
RequestMeter(metrics, "x", 0, streamed=False).end("done")
RequestMeter(metrics, "x", 0, streamed=False).accepted()
RequestMeter(metrics, "x", 0, streamed=False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_worker(directory: Path) -> None:
    """One that has ended a request, runs one, and waits for one."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", _VICTIM, str(directory)], cwd=root, timeout=60, check=False)


def test_a_killed_worker_leaves_its_counts_and_no_gauges(tmp_path: Path) -> None:
    survivor = Metrics(tmp_path)
    kill_a_worker(tmp_path)
    assert number(survivor, f.REQUESTS_ENDED, "x", "done") == 1
    assert f.REQUESTS_RUNNING not in {family for family, series in survivor.collect().items() if series}
    assert number(survivor, f.REQUESTS_WAITING, "x") == 0


def test_its_successor_counts_what_died_with_it(tmp_path: Path) -> None:
    survivor = Metrics(tmp_path)
    kill_a_worker(tmp_path)
    successor = Metrics(tmp_path)
    for metrics in (survivor, successor):
        assert number(metrics, f.REQUESTS_ENDED, "x", "worker_lost") == 2
        assert number(metrics, f.REQUESTS_ENDED, "x", "done") == 1
        assert number(metrics, f.REQUESTS_RUNNING, "x") == number(metrics, f.REQUESTS_WAITING, "x") == 0
    assert len(list(tmp_path.iterdir())) == 2


# ------------------------------------------------------------------------------------------------ one request


def test_a_streamed_answer(metrics: Metrics, clock: Clock) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=True, clock=clock)
    assert number(metrics, f.REQUESTS_WAITING, "x") == 1
    meter.accepted()
    assert (number(metrics, f.REQUESTS_WAITING, "x"), number(metrics, f.REQUESTS_RUNNING, "x")) == (0, 1)
    clock.now += 0.3
    meter.take([m.Delta(0, "a")])
    clock.now += 0.02
    meter.take([m.Delta(0, "b c", 2)])
    clock.now += 0.05
    meter.take([m.Delta(0, "d"), m.Finish(0, "stop"), m.Usage(7, 4), m.Done()])
    meter.end("done")
    assert observations(metrics, f.TIME_TO_FIRST_TOKEN, "x") == (1, 0.3)
    assert observations(metrics, f.INTER_TOKEN, "x") == (3, 0.07)
    assert observations(metrics, f.END_TO_END, "x") == (1, 0.37)
    assert metrics.collect()[f.INTER_TOKEN]["x",][f.INTER_TOKEN.buckets.index(0.01)] == 2
    assert (number(metrics, f.PROMPT_TOKENS, "x"), number(metrics, f.GENERATION_TOKENS, "x")) == (7, 4)
    assert number(metrics, f.REQUESTS_RUNNING, "x") == 0


def test_a_whole_answer_has_no_first_token(metrics: Metrics, clock: Clock) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=False, clock=clock)
    meter.accepted()
    meter.take([m.Chunk(0, b'{"message":{}}'), m.Finish(0, "stop"), m.Usage(7, 40), m.Done()])
    meter.end("done")
    assert observations(metrics, f.TIME_TO_FIRST_TOKEN, "x") == observations(metrics, f.INTER_TOKEN, "x") == (0, 0)
    assert number(metrics, f.GENERATION_TOKENS, "x") == 40


def test_sound_has_a_first_piece_and_a_length(metrics: Metrics, clock: Clock) -> None:
    piece = m.Audio(0, memoryview(b"x"), "pcm", 24_000, 12_000)
    for streamed in (True, False):
        meter = RequestMeter(metrics, "x", 0, streamed=streamed, clock=clock)
        meter.accepted()
        clock.now += 0.2
        meter.take([piece, piece])
        clock.now += 0.2
        meter.take([piece, m.Usage(7, 30), m.Done()])
        meter.end("done")
    assert observations(metrics, f.TIME_TO_FIRST_AUDIO, "x") == (1, 0.2)
    assert number(metrics, f.AUDIO_SECONDS, "x") == 3
    assert observations(metrics, f.TIME_TO_FIRST_TOKEN, "x") == (0, 0)
    assert number(metrics, f.GENERATION_TOKENS, "x") == 60


@pytest.mark.parametrize("batches", [31, 32, 33, 64, 100])
def test_every_token_is_counted_once(metrics: Metrics, clock: Clock, batches: int) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=True, clock=clock)
    meter.accepted()
    for _ in range(batches):
        clock.now += 0.25
        meter.take([m.Delta(0, "a"), m.Usage(1, 1)])
    meter.end("client_disconnect")
    assert number(metrics, f.GENERATION_TOKENS, "x") == batches
    assert observations(metrics, f.INTER_TOKEN, "x") == (batches - 1, (batches - 1) * 0.25)


def test_a_long_stream_is_seen_while_it_runs(metrics: Metrics, clock: Clock) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=True, clock=clock)
    meter.accepted()
    for _ in range(40):
        clock.now += 0.1
        meter.take([m.Delta(0, "a")])
    assert number(metrics, f.GENERATION_TOKENS, "x") == 33


def test_objects_without_usage_count_as_one_token_each(metrics: Metrics, clock: Clock) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=True, clock=clock)
    meter.accepted()
    for _ in range(3):
        meter.take([m.Chunk(0, b"{}")])
    meter.end("timeout")
    assert number(metrics, f.GENERATION_TOKENS, "x") == 3


def test_the_first_end_counts(metrics: Metrics) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=False)
    meter.end("timeout")
    meter.end("client_disconnect")
    assert metrics.collect()[f.REQUESTS_ENDED] == {("x", "timeout"): [1.0]}
    assert number(metrics, f.REQUESTS_WAITING, "x") == 0


def test_a_request_that_moves_to_another_replica_runs_once(metrics: Metrics) -> None:
    meter = RequestMeter(metrics, "x", 0, streamed=False)
    meter.accepted()
    meter.accepted()
    assert (number(metrics, f.REQUESTS_WAITING, "x"), number(metrics, f.REQUESTS_RUNNING, "x")) == (0, 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError(400, "x"), "rejected"),
        (ApiError(429, "x"), "rejected"),
        (ApiError(408, "x"), "timeout"),
        (ApiError(504, "x"), "timeout"),
        (ApiError(503, "x"), "failed"),
        (asyncio.CancelledError(), "client_disconnect"),
        (ValueError(), "failed"),
    ],
)
def test_reasons(error: BaseException, reason: EndReason) -> None:
    assert reason_of(error) == reason


# ------------------------------------------------------------------------------------------------ HTTP and replicas


def test_methods_are_bounded(metrics: Metrics) -> None:
    for method in ("GET", "BREW", "X" * 1000):
        metrics.observe_http("unmatched", method, 404, 0.1)
    assert metrics.collect()[f.HTTP_REQUESTS] == {
        ("unmatched", "GET", "4xx"): [1.0],
        ("unmatched", "other", "4xx"): [2.0],
    }


def replica(replica_id: int, state: m.ReplicaState, load: m.Load | None = None) -> m.ReplicaInfo:
    return m.ReplicaInfo(
        0, replica_id, "ipc://x", state, "here", 1, load or m.Load(), m.Capabilities(), local=replica_id < 3
    )


def test_replicas_that_are_missing_are_down() -> None:
    stage = StageConfig(stage_id=0, name="thinker", kind="stub", model="x", num_replicas=3)
    replicas = [replica(0, "up", m.Load(2, 5, held=7)), replica(2, "starting"), replica(7, "up")]  # 7 is a headless one
    samples = replica_samples([stage], m.Membership(1, 1, replicas, [(0, 0, 0), (0, 1, 4)]))
    states = {state: values[0] for (_, state), values in samples[f.REPLICAS].items()}
    assert states == {"up": 2, "starting": 1, "down": 1, "draining": 0, "suspect": 0}
    assert samples[f.REPLICA_RESTARTS] == {("0", "0"): [0], ("0", "1"): [4]}
    assert (samples[f.REPLICA_RUNNING]["0", "0"], samples[f.REPLICA_WAITING]["0", "0"]) == ([2], [5])
    assert samples[f.REPLICA_HELD]["0", "0"] == [7]
