"""Tensors leave a replica as fast as the next stage uses them: in order, none lost, and what waits is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import messages as m
from app.cluster.refs import RefStore
from app.cluster.tensors import Tensor
from app.engines import outflow
from app.engines.base import EngineError
from app.engines.outflow import Outflow
from tests.clusters import exchange

SIZE = outflow.WINDOW // 64


@pytest.fixture
def store() -> Iterator[RefStore]:
    one = RefStore(1 << 30)
    yield one
    one.close()


def flow(store: RefStore) -> tuple[Outflow, list[m.Tensors]]:
    sent: list[m.Tensors] = []
    return Outflow(exchange(store), b"c", "r", sent.append), sent


def bytes_of(size: int) -> dict[str, Tensor]:
    return {"x": Tensor("uint8", (size,), memoryview(bytes(size)))}


@given(st.lists(st.integers(1, 5 * SIZE) | st.just(None), max_size=80))
def test_the_next_stage_never_has_much_unused_and_gets_everything(steps: list[int | None]) -> None:
    """None: it uses the oldest of what it has got."""
    store = RefStore(SIZE)
    one, sent = flow(store)
    used = made = 0
    for step in steps:
        if step is not None:
            one.put(bytes_of(step))
            made += 1
        elif used < len(sent):
            one.use(sent[used].number)
            used += 1
        unused = sent[used:]
        assert sum(event.size for event in unused[:-1]) < outflow.WINDOW
        assert one.waits == (len(sent) < made)
    for _ in range(made):
        if sent:
            one.use(sent[-1].number)
    assert [event.number for event in sent] == list(range(made))
    assert not one.waits
    store.release(b"c", "r")
    assert store.size == 0


def test_a_large_one_does_not_wait_for_small_ones_to_be_released(store: RefStore) -> None:
    """They are released together, once they are many."""
    one, sent = flow(store)
    one.put(bytes_of(100))
    one.put(bytes_of(2 * outflow.WINDOW))
    assert (len(sent), one.waits) == (2, False)


def test_files_are_never_all_in_the_window_of_one_request() -> None:
    store = RefStore(0)
    one, sent = flow(store)
    for _ in range(20):
        one.put(bytes_of(1))
    assert (len(sent), len(store)) == (16, 20)
    store.close()


async def test_a_producer_can_wait_for_it(store: RefStore) -> None:
    one, sent = flow(store)
    while not one.waits:
        await asyncio.wait_for(one.ready(), 1)
        one.put(bytes_of(SIZE))
    waiting = asyncio.create_task(one.ready())
    one.use(0)
    await asyncio.wait_for(waiting, 1)
    assert len(sent) == sent[-1].number + 1


def test_small_tensors_that_wait_are_held_too() -> None:
    """So a next stage that does not keep up costs no more memory than large ones would."""
    store = RefStore(1 << 30, capacity=3 * SIZE)
    one, sent = flow(store)
    while not one.waits:
        one.put(bytes_of(SIZE))
    assert store.size > SIZE
    one.put(bytes_of(SIZE))
    with pytest.raises(EngineError) as caught:
        one.put(bytes_of(SIZE))
    assert caught.value.failed.code == m.TENSORS_FULL
    count = len(sent)
    one.drop()
    assert (store.size, one.waits, len(sent)) == (0, False, count)
