"""Tensors packed by one replica and read by another: equal, uncopied where that can be, or it is told why not."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator

import pytest

from app.cluster import messages as m
from app.cluster import refs, tensors
from app.cluster.pull import PullError, PullTimeoutError
from app.cluster.refs import Ref, RefStore
from app.cluster.tensors import Source, Tensor
from app.engines.base import EngineError
from app.engines.tensors import INLINE, Exchange

HERE, THERE = Source("thinker", "here", "ipc://here"), Source("thinker", "there", "tcp://there:1")


class Pulls:
    """In the place of a Puller: what was asked for; it gives `data`, or raises it."""

    def __init__(self, data: bytes | Exception = b"") -> None:
        self.data = data
        self.asked: list[tuple[str, str]] = []

    async def pull(self, address: str, ref: Ref) -> memoryview:
        self.asked.append((address, ref.name))
        if isinstance(self.data, Exception):
            raise self.data
        return memoryview(self.data)


@pytest.fixture
def store() -> Iterator[RefStore]:
    one = RefStore(1000, capacity=1 << 20)
    yield one
    one.close()


def exchange(store: RefStore, source: Source = HERE, pulls: Pulls | None = None) -> Exchange:
    return Exchange(store, source, pulls or Pulls())  # type: ignore[arg-type]


def rows(count: int, width: int = 100) -> Tensor:
    return Tensor("bfloat16", (count, width), memoryview(os.urandom(2 * count * width)))


async def test_what_is_packed_is_read(store: RefStore) -> None:
    sent = {
        "large": rows(10),
        "small": rows(2),
        "ids": Tensor("int64", (3,), memoryview(array("q", [1, 2, 3]))),
        "scalar": Tensor("float32", (), memoryview(struct.pack("f", 1.5))),
        "none": Tensor("float32", (0, 7)),
    }
    event = exchange(store).pack(b"c", "r", 4, sent)
    assert (event.number, event.held, len(store)) == (4, True, 1)
    assert event.size == len(event.packed) + 2000
    received = await exchange(store).read(bytes(event.packed))
    assert list(received) == list(sent)
    for name, tensor in received.items():
        expected = sent[name]
        assert (tensor.dtype, tensor.shape, tensor.ref) == (expected.dtype, expected.shape, None)
        assert bytes(tensor.data) == bytes(expected.data)
        assert tensor.data.readonly


async def test_what_is_small_is_not_held(store: RefStore) -> None:
    event = exchange(store).pack(b"c", "r", 0, {"a": rows(2), "b": rows(2)})
    assert (event.held, event.size, len(store)) == (False, len(event.packed), 0)
    assert tensors.decode(event.packed).source is None


def test_an_event_never_brings_much_to_an_api_worker(store: RefStore) -> None:
    parts = {str(number): rows(4) for number in range(5)}  # 800 bytes each, of 1000
    event = exchange(store).pack(b"c", "r", 0, parts)
    assert (len(store), len(event.packed) < 1500) == (4, True)
    many = RefStore(1 << 30)
    assert exchange(many).pack(b"c", "r", 0, {"a": Tensor("uint8", (INLINE + 1,), memoryview(bytes(INLINE + 1)))}).held
    many.close()


def test_a_full_store_refuses_and_holds_no_half(store: RefStore) -> None:
    one = exchange(store)
    one.pack(b"c", "r", 0, {"a": Tensor("uint8", (1 << 19,), memoryview(bytes(1 << 19)))})
    for data in (1 << 19) + 1, (1 << 20):
        with pytest.raises(EngineError) as caught:
            one.pack(b"c", "s", 0, {"a": rows(6), "b": Tensor("uint8", (data,), memoryview(bytes(data)))})
        failed = caught.value.failed
        assert (failed.status, failed.code) == (503, m.TENSORS_FULL)
        assert "stage thinker holds 1 tensors, 0 MiB for stages that do not keep up" in failed.message.replace(
            "2 t", "1 t"
        )
        assert (len(store), store.size) == (1, 1 << 19)
    store.release(b"c", "r")
    one.pack(b"c", "s", 0, {"a": rows(6)})


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor("bfloat16", (2, 2), memoryview(bytes(7))), r"a has 7 bytes; \(2, 2\) of bfloat16 are 8"),
        (Tensor("bf16", (2, 2), memoryview(bytes(8))), "'bf16' is no dtype of a tensor"),
    ],
)
def test_data_that_does_not_fit_is_refused(store: RefStore, tensor: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        exchange(store).pack(b"c", "r", 0, {"a": tensor})


async def test_other_hosts_are_pulled_from_whatever_their_pids_are_here(store: RefStore) -> None:
    packed = exchange(store, THERE).pack(b"c", "r", 0, {"a": rows(10)}).packed
    pulls = Pulls(bytes(2000))
    received = await exchange(store, HERE, pulls).read(bytes(packed))
    assert received["a"].data == bytes(2000)
    assert pulls.asked == [("tcp://there:1", next(iter(store._held)))]


async def test_so_are_processes_that_hide_their_memory(store: RefStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(ref: Ref) -> memoryview:
        raise PermissionError(13, "Permission denied")

    packed = exchange(store).pack(b"c", "r", 0, {"a": rows(10)}).packed
    monkeypatch.setattr(refs, "read", hidden)
    pulls = Pulls(bytes(2000))
    assert (await exchange(store, HERE, pulls).read(bytes(packed)))["a"].data == bytes(2000)


@pytest.mark.parametrize(
    ("source", "error", "status"),
    [
        (HERE, None, 503),
        (THERE, PullError("the connection to its producer is lost"), 503),
        (THERE, PullTimeoutError("silent"), 504),
    ],
)
async def test_what_is_gone_names_who_made_it(
    store: RefStore, source: Source, error: Exception | None, status: int
) -> None:
    packed = exchange(store, source).pack(b"c", "r", 0, {"a": rows(10)}).packed
    store.release(b"c", "r")
    with pytest.raises(EngineError) as caught:
        await exchange(store, HERE, Pulls(error or b"")).read(bytes(packed))
    failed = caught.value.failed
    assert (failed.status, failed.code) == (status, m.INPUT_LOST)
    assert failed.message.startswith("what stage thinker produced for this request cannot be read: ")
