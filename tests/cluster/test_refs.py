"""What a process holds for others: whole, only for those it is for, and gone with its owner."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from app.cluster.refs import MAX_HELD, Ref, RefStore, read, readable

DATA = bytes(range(256)) * 1000
# Holds what it is told to, prints its ref, waits to be killed.
OWNER = """
import sys, msgspec
from app.cluster.refs import RefStore
store = RefStore(0)
print(msgspec.json.encode(store.put(b"c", "r", b"x" * 1_000_000)).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store() -> Iterator[RefStore]:
    one = RefStore(threshold=10, capacity=1 << 20)
    yield one
    one.close()


def put(store: RefStore, data: bytes = DATA, client: bytes = b"c", request_id: str = "r") -> Ref:
    ref = store.put(client, request_id, data)
    assert ref is not None
    return ref


@contextmanager
def another_process() -> Iterator[tuple[subprocess.Popen[bytes], Ref]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, msgspec.json.decode(process.stdout.readline(), type=Ref)
        process.kill()


def test_what_is_put_is_read(store: RefStore) -> None:
    for data in (DATA, memoryview(DATA)[5:]):
        ref = store.put(b"c", "r", data)
        assert ref is not None
        view = read(ref)
        assert (view == data, view.readonly, view.nbytes) == (True, True, len(data))
    assert (len(store), store.size) == (2, 2 * len(DATA) - 5)


def test_what_is_not_large_stays_where_it_is(store: RefStore) -> None:
    assert store.put(b"c", "r", b"x" * 10) is None
    assert store.put(b"c", "r", b"x" * 11) is not None
    assert RefStore(threshold=0).put(b"c", "r", b"") is None


def test_it_is_let_go_of_by_request_and_by_client(store: RefStore) -> None:
    mine, twice, other = put(store), put(store), put(store, request_id="s")
    theirs = put(store, client=b"d")
    seen = read(mine)
    store.release(b"c", "r")
    for gone in (mine, twice):
        with pytest.raises(OSError, match="No such file"):
            read(gone)
    assert read(other) == read(theirs) == seen == DATA, "who has mapped it keeps it"
    store.drop(b"c")
    assert (len(store), store.size) == (1, len(DATA))
    store.release(b"nobody", "r")
    assert read(theirs) == DATA


def test_a_number_that_stands_for_something_else_by_now_is_noticed(store: RefStore) -> None:
    old = put(store)
    store.release(b"c", "r")
    new = put(store, b"another's picture")
    assert (new.fd, new.pid) == (old.fd, old.pid)
    with pytest.raises(FileNotFoundError):
        read(old)
    store.release(b"c", "r")
    ends = os.pipe()
    assert old.fd in ends
    try:
        with pytest.raises(FileNotFoundError):
            read(old)
    finally:
        for end in ends:
            os.close(end)


def test_a_request_lets_go_of_what_has_been_used(store: RefStore) -> None:
    refs = [store.hold(b"c", "r", bytes(9), number) for number in (0, 1, 1, 2)]
    store.release(b"c", "r", through=1)
    assert [ref is not None and store.piece(ref.name, 0, 5) for ref in refs] == [None, None, None, bytes(5)]
    assert store.size == 9
    store.release(b"c", "r", through=7)
    assert (len(store), store.size) == (0, 0)


def test_pieces_of_a_ref(store: RefStore) -> None:
    ref = put(store)
    assert [store.piece(ref.name, 7, 3), store.piece(ref.name, len(DATA) - 2, 100)] == [DATA[7:10], DATA[-2:]]
    assert store.piece("omni-another", 0, 3) is None


def test_what_waits_elsewhere_takes_room_too(store: RefStore) -> None:
    assert store.reserve((1 << 20) - 100)
    assert store.hold(b"c", "r", bytes(101)) is None
    assert not store.reserve(101)
    store.unreserve(1)
    assert store.hold(b"c", "r", bytes(101)) is not None
    assert store.size == 1 << 20


def test_what_nobody_was_told_of_goes(store: RefStore) -> None:
    kept, gone = put(store), put(store)
    store.let_go([gone])
    assert (len(store), read(kept)) == (1, DATA)


def test_a_full_store_says_so_once(store: RefStore, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        put(store)
    with caplog.at_level(logging.WARNING):
        assert [store.put(b"c", "r", DATA) for _ in range(3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    store.release(b"c", "r")
    put(store)


def test_it_never_takes_all_descriptors_of_its_process(store: RefStore) -> None:
    refs = [store.put(b"c", "r", b"x" * 20) for _ in range(MAX_HELD + 1)]
    assert [ref is None for ref in refs] == [False] * MAX_HELD + [True]


def test_where_the_kernel_gives_no_memory_data_stays(store: RefStore, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert store.put(b"c", "r", DATA) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in caplog.text
    put(store)


def test_what_nobody_comes_for_ends() -> None:
    patient, hasty = RefStore(0), RefStore(0, ttl_s=-1)
    for store in (patient, hasty):
        put(store)
        store.expire()
    assert (len(patient), len(hasty)) == (1, 0)
    patient.close()


def test_what_somebody_is_at_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store = RefStore(0, ttl_s=10)
    first, second, other = (
        store.hold(b"c", request_id, b"x", number) for request_id, number in (("r", 0), ("r", 1), ("s", 0))
    )
    assert first is not None
    assert second is not None
    assert other is not None
    now += 9
    store.release(b"c", "r", through=0)
    now += 9
    store.expire()
    assert [store.piece(ref.name, 0, 1) for ref in (first, second, other)] == [None, b"x", None]
    store.close()


def test_it_goes_with_its_owner() -> None:
    with another_process() as (owner, ref):
        assert readable(owner.pid)
        view = read(ref)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert view == b"x" * 1_000_000
        assert not readable(owner.pid)
        with pytest.raises(OSError, match="No such file"):
            read(ref)
