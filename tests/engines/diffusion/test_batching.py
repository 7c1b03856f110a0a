"""Which rows are next: together what can be, in turn what cannot, nobody for ever."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from app.engines.diffusion.batching import Row, RowQueue
from app.engines.diffusion.call import Call
from app.engines.diffusion.loraweights import Part
from tests.engines.diffusion.asking import Pipelines, task
from tests.engines.diffusion.running import Recorder, call_for, offer_of


@pytest.fixture
def call(tiny_pipeline: Pipelines) -> Call:
    return call_for(offer_of(tiny_pipeline("sd")), task())


def rows(call: Call, key: Any, *seeds: int) -> list[Row]:
    keyed = msgspec.structs.replace(call, key=key)
    return [Row(msgspec.structs.replace(keyed, seed=seed), 0, Recorder()) for seed in seeds]


def seeds(batch: list[Row] | None) -> list[int]:
    assert batch is not None
    return [row.seed for row in batch]


def test_rows_of_one_key_come_together_and_keys_take_turns(call: Call) -> None:
    queue = RowQueue(most=2)
    queue.put(rows(call, "a", 1, 2, 3, 4, 5))
    queue.put(rows(call, "b", 10, 11, 12))
    queue.put(rows(call, "c", 20))
    batches = [seeds(queue.take()) for _ in range(6)]
    assert batches == [[1, 2], [10, 11], [20], [3, 4], [12], [5]]


def test_rows_without_a_key_come_alone(call: Call) -> None:
    queue = RowQueue(most=8)
    queue.put(rows(call, None, 1, 2))
    assert [seeds(queue.take()) for _ in range(2)] == [[1], [2]]


def test_cancelled_rows_do_not_come(call: Call) -> None:
    queue = RowQueue(most=8)
    waiting = rows(call, "a", 1, 2, 3)
    gone = rows(call, "b", 4)
    queue.put(gone + waiting)
    for row in (*gone, waiting[1]):
        row.cancelled = True
    assert seeds(queue.take()) == [1, 3]


def test_a_small_batch_waits_for_company_and_a_full_one_does_not(call: Call) -> None:
    queue = RowQueue(most=2, max_wait_s=0.3)
    queue.put(rows(call, "a", 1))
    queue.put(rows(call, "b", 2, 3))
    assert seeds(queue.take()) == [2, 3]
    before = time.monotonic()
    later = threading.Timer(0.05, queue.put, [rows(call, "a", 4)])
    later.start()
    assert seeds(queue.take()) == [1, 4]
    queue.put(rows(call, "a", 5))
    assert seeds(queue.take()) == [5]
    assert time.monotonic() - before > 0.3


def test_a_closed_queue_fails_what_waits_and_what_comes(call: Call) -> None:
    queue = RowQueue(most=1)
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    queue.close()
    thread.join(5)
    assert taken == [None]
    (late,) = rows(call, "a", 1)
    queue.put([late])
    assert isinstance(late.listener, Recorder)
    assert late.listener.error.failed.status == 503
    assert queue.take() is None


def test_adapters_that_cannot_act_side_by_side_come_one_after_another(call: Call) -> None:
    plain, weak, strong, other = (), (Part("a", 0.5),), (Part("a", 1.0),), (Part("b", 1.0),)
    queue = RowQueue(most=8, max_loras=2)
    waiting = rows(call, "k", 1, 2, 3, 4, 5)
    for row, blend in zip(waiting, (plain, weak, strong, other, weak), strict=True):
        row.call = msgspec.structs.replace(row.call, blend=blend)
    queue.put(waiting)
    assert [seeds(queue.take()) for _ in range(2)] == [[1, 2, 4, 5], [3]]
    pair = (Part("a", 1.0), Part("b", 0.3))
    both = rows(call, "k", 6, 7, 8)
    for row, blend in zip(both, (pair, pair, other), strict=True):
        row.call = msgspec.structs.replace(row.call, blend=blend)
    queue.put(both)
    assert [seeds(queue.take()) for _ in range(2)] == [[6, 7], [8]]


def test_a_batch_has_no_more_adapters_than_may_be_loaded(call: Call) -> None:
    queue = RowQueue(most=8, max_loras=2)
    waiting = rows(call, "k", 1, 2, 3, 4)
    for row, name in zip(waiting, "abca", strict=True):
        row.call = msgspec.structs.replace(row.call, blend=(Part(name, 1.0),))
    queue.put(waiting)
    assert [seeds(queue.take()) for _ in range(2)] == [[1, 2, 4], [3]]
