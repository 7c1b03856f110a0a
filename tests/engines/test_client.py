"""Credit: nothing is lost, nothing changes its order, and a client that does not read costs what it was promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import messages as m
from app.cluster.refs import RefStore, read
from app.cluster.tensors import Tensor
from app.engines import outflow
from app.engines.base import EngineError, Request
from app.engines.client import Client
from app.engines.stub import StubEngine
from tests.clusters import exchange, settings, text_of

LARGE = 1 << 30


class Wire:
    """Where a Client's messages go; what a Channel would put on its socket."""

    def __init__(self) -> None:
        self.messages: list[m.Events] = []

    def send(self, frames: list[bytes]) -> None:
        identity, frame = frames
        assert identity == b"me"
        message = m.decode_data(frame)
        assert isinstance(message, m.Events)
        self.messages.append(message)

    @property
    def events(self) -> list[m.AnyEvent]:
        return [event for message in self.messages for _, event in message.items]


class Script(StubEngine):
    """An engine that does what the test says."""

    def __init__(self, run: Callable[[Request], Awaitable[None]]) -> None:
        super().__init__(settings().stages[0])
        self._script = run

    async def run(self, request: Request) -> None:
        await self._script(request)


def client(run: Callable[[Request], Awaitable[None]], refs: RefStore | None = None) -> tuple[Client, Wire]:
    wire = Wire()
    return Client(b"me", wire, Script(run), exchange(refs)), wire  # type: ignore[arg-type]


def start(run: Callable[[Request], Awaitable[None]], credit: int = LARGE) -> tuple[Client, Wire]:
    one, wire = client(run)
    one.submit(m.Submit("r", "chat", "", credit), b"", refuse=None)
    return one, wire


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


deltas = st.builds(m.Delta, st.integers(0, 2), st.text(max_size=300), st.integers(0, 3))
chunks = st.builds(m.Chunk, st.integers(0, 2), st.binary(max_size=300))
finishes = st.builds(m.Finish, st.integers(0, 2), st.just("stop"))
steps = st.lists(deltas | chunks | finishes | st.integers(0, 600), max_size=60)


def joined(events: list[m.AnyEvent], index: int) -> list[m.AnyEvent]:
    """The events of one choice with neighbouring deltas as one: what coalescing must not change."""
    result: list[m.AnyEvent] = []
    for event in events:
        if getattr(event, "index", None) != index:
            continue
        last = result[-1] if result else None
        if isinstance(event, m.Delta) and isinstance(last, m.Delta):
            result[-1] = m.Delta(index, last.text + event.text, last.tokens + event.tokens)
        else:
            result.append(event)
    return result


@given(steps, st.integers(0, 1500))
def test_random_credit_loses_nothing_reorders_nothing_and_is_never_overdrawn(
    script: list[m.AnyEvent | int], window: int
) -> None:
    async def check() -> None:
        emitted: list[m.AnyEvent] = []
        granted = window

        async def run(request: Request) -> None:
            nonlocal granted
            for step in script:
                if isinstance(step, int):
                    granted += step
                    one.credit("r", step)
                else:
                    emitted.append(step)
                    request.emit(step)
                await asyncio.sleep(0)
                costs = [m.cost(event) for event in wire.events]
                assert sum(costs) - (costs[-1] if costs else 0) <= granted
            request.emit(m.Done())

        one, wire = start(run, window)
        task = one.requests["r"].task
        assert task is not None
        await task
        one.credit("r", LARGE)
        await turns()
        for index in range(3):
            assert joined(wire.events, index) == joined(emitted, index)
        assert wire.events[-1] == m.Done()
        assert one.requests == {}

    asyncio.run(check())


async def test_out_of_credit_the_text_of_a_choice_becomes_one_event() -> None:
    async def run(request: Request) -> None:
        for number in range(1000):
            request.emit(m.Delta(0, f"{number} "))
        request.emit(m.Done())

    one, wire = start(run, credit=1)
    await turns()
    assert wire.events == [m.Delta(0, "0 ")]
    assert "r" in one.requests, "a finished request whose events are held must still hear of credit"
    one.credit("r", LARGE)
    await turns()
    assert len(wire.events) == 3
    assert text_of(wire.events) == "".join(f"{number} " for number in range(1000))
    assert sum(x.tokens for x in wire.events if isinstance(x, m.Delta)) == 1000
    assert one.requests == {}


async def test_a_producer_waits_for_credit() -> None:
    made: list[int] = []

    async def run(request: Request) -> None:
        for number in range(10):
            await request.ready()
            made.append(number)
            request.emit(m.Chunk(0, b"x" * 800))  # costs 1000

    one, _ = start(run, credit=2500)
    await turns(30)
    assert made == [0, 1, 2]
    one.credit("r", 400)  # still in debt by 100
    await turns(30)
    assert made == [0, 1, 2]
    one.credit("r", 1700)
    await turns(30)
    assert made == [0, 1, 2, 3, 4]
    one.credit("unknown", 5)


async def test_one_turn_is_one_message() -> None:
    async def run(request: Request) -> None:
        for _ in range(3):
            request.emit(m.Delta(0, "x"))
        await asyncio.sleep(0.01)
        request.emit(m.Done())

    one, wire = client(run)
    for name in ("a", "b"):
        one.submit(m.Submit(name, "chat"), b"", refuse=None)
    await asyncio.sleep(0.1)
    assert [len(message.items) for message in wire.messages] == [6, 2]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (EngineError(m.Failed(422, "not this", "invalid_request_error")), 422, "not this"),
        (ZeroDivisionError("secret detail"), 500, "ZeroDivisionError in the engine; see the server's log"),
    ],
)
async def test_an_error_is_the_last_event_and_keeps_its_details_to_the_log(
    error: Exception, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(request: Request) -> None:
        request.emit(m.Accepted())
        raise error

    one, wire = start(run)
    await turns()
    (_, failed) = wire.events
    assert isinstance(failed, m.Failed)
    assert (failed.status, failed.message) == (status, message)
    assert ("secret detail" in caplog.text) == (status == 500)
    assert one.requests == {}


async def test_a_refused_request_never_starts() -> None:
    async def run(request: Request) -> None:
        raise AssertionError("it ran")

    one, wire = client(run)
    one.submit(m.Submit("r", "chat"), b"", refuse=m.Failed(503, "draining"))
    await turns()
    assert wire.events == [m.Failed(503, "draining")]
    assert one.requests == {}


async def hang(request: Request) -> None:
    request.emit(m.Accepted())
    await asyncio.Event().wait()


async def test_an_abort_cancels_and_nothing_more_is_sent() -> None:
    ended: list[str] = []

    async def run(request: Request) -> None:
        try:
            await hang(request)
        finally:
            ended.append(request.request_id)

    one, wire = start(run)
    await turns()
    one.abort("r")
    one.abort("r")
    await turns()
    assert ended == ["r"]
    assert wire.events == [m.Accepted()]
    assert one.requests == {}


async def test_an_abort_before_the_first_step_starts_nothing() -> None:
    one, wire = start(hang)
    one.abort("r")
    await turns()
    assert wire.events == []


async def test_a_dead_client_is_sent_nothing() -> None:
    one, wire = start(hang)
    one.submit(m.Submit("s", "chat"), b"", refuse=m.Failed(503, "draining"))
    one.cancel_all()
    await turns()
    assert (wire.messages, one.requests) == ([], {})


async def test_a_client_that_was_only_silent_learns_what_it_lost() -> None:
    one, wire = start(hang)
    await turns()
    one.expire()
    await turns()
    (_, failed) = wire.events
    assert isinstance(failed, m.Failed)
    assert failed.code == m.REPLICA_LOST
    assert one.requests == {}


async def test_who_does_not_read_is_ended_and_who_reads_is_not() -> None:
    async def talk(request: Request) -> None:
        while True:
            await request.ready()
            request.emit(m.Delta(0, "x" * 100))
            await asyncio.sleep(0.001)

    one, wire = client(talk)
    one.submit(m.Submit("deaf", "chat", "", 1000), b"", refuse=None)
    one.submit(m.Submit("reader", "chat", "", LARGE), b"", refuse=None)
    await asyncio.sleep(0.2)
    one.end_slow_readers(limit_s=60)
    assert set(one.requests) == {"deaf", "reader"}
    one.end_slow_readers(limit_s=0.1)
    await turns()
    assert set(one.requests) == {"reader"}
    failures = [(name, x.code) for x_ in wire.messages for name, x in x_.items if isinstance(x, m.Failed)]
    assert failures == [("deaf", "slow_client")]
    one.cancel_all()
    await turns()


# ------------------------------------------------------------------------------------------------ large data


PICTURE = m.Picture(0, memoryview(b"p" * 5000), "png", 8, 8, 1)


async def draw(request: Request) -> None:
    for event in (m.Accepted(), PICTURE, m.Done()):
        request.emit(event)


async def drawn(
    store: RefStore, *, refs: bool = True, run: Callable[[Request], Awaitable[None]] = draw
) -> tuple[Client, m.Picture]:
    one, wire = client(run, store)
    one.submit(m.Submit("r", "image", refs=refs), b"", refuse=None)
    await turns()
    (picture,) = [event for event in wire.events if isinstance(event, m.Picture)]
    return one, picture


async def test_a_large_picture_leaves_as_a_ref_until_it_is_released() -> None:
    one, picture = await drawn(store := RefStore(100))
    assert picture.ref is not None
    assert (bytes(picture.data), read(picture.ref)) == (b"", PICTURE.data)
    assert (one.requests, len(store)) == ({}, 1)
    one.release("r")
    assert len(store) == 0


@pytest.mark.parametrize(
    ("store", "refs"),
    [(RefStore(100), False), (RefStore(100, capacity=4999), True), (RefStore(5000), True)],
    ids=["the client reads none", "no room", "not large"],
)
async def test_otherwise_it_carries_its_data(store: RefStore, refs: bool) -> None:
    _, picture = await drawn(store, refs=refs)
    assert (picture.ref, bytes(picture.data), len(store)) == (None, bytes(PICTURE.data), 0)


@pytest.mark.parametrize("end", [lambda one: one.abort("r"), Client.cancel_all, Client.expire])
async def test_nothing_is_held_for_a_client_that_is_gone(end: Callable[[Client], None]) -> None:
    async def draws_to_the_last(request: Request) -> None:
        request.emit(PICTURE)
        try:
            await asyncio.Event().wait()
        finally:
            request.emit(PICTURE)

    for run in (draw, draws_to_the_last):
        one, _ = await drawn(store := RefStore(100), run=run)
        assert len(store) == 1
        end(one)
        await turns()
        assert len(store) == 0


# ------------------------------------------------------------------------------------------------ from stage to stage


def consumed(wire: Wire) -> list[int]:
    return [event.count for event in wire.events if isinstance(event, m.Consumed)]


async def test_what_the_engine_has_used_is_told_when_it_asks_for_more() -> None:
    read: list[bytes | None] = []

    async def run(request: Request) -> None:
        while not read or read[-1] is not None:
            read.append(await request.next_input())

    one, wire = start(run)
    for data, used in ((b"a", [1]), (b"b", [1, 2]), (b"", [1, 2])):
        one.append("r", data, last=not data)
        await turns()
        assert (read[-1], consumed(wire)) == (data or None, used)


async def test_who_gives_up_waiting_for_input_has_used_it_once() -> None:
    async def run(request: Request) -> None:
        await request.next_input()
        for _ in range(3):
            with suppress(TimeoutError):
                await asyncio.wait_for(request.next_input(), 0.01)

    one, wire = start(run)
    one.append("r", b"a", last=False)
    await asyncio.sleep(0.1)
    assert consumed(wire) == [1]


LARGE_TENSOR = {"x": Tensor("uint8", (2 * outflow.WINDOW,), memoryview(bytes(2 * outflow.WINDOW)))}


async def make_three(request: Request) -> None:
    for _ in range(3):
        request.emit_tensors(LARGE_TENSOR)
        request.emit(m.Delta(0, "word "))
    request.emit(m.Done())


def tensors_of(wire: Wire) -> list[int]:
    return [event.number for event in wire.events if isinstance(event, m.Tensors)]


async def test_a_request_ends_when_its_last_tensors_have_left() -> None:
    one, wire = client(make_three, store := RefStore(100))
    one.submit(m.Submit("r", "make"), b"", refuse=None)
    await turns()
    assert (tensors_of(wire), text_of(wire.events)) == ([0], "word word word ")
    assert not isinstance(wire.events[-1], m.Done)
    for number in (0, 1):
        one.release("r", through=number)
        await turns()
        assert tensors_of(wire) == list(range(number + 2))
    assert isinstance(wire.events[-1], m.Done)
    assert (one.requests, len(store)) == ({}, 1)
    one.release("r")
    assert store.size == 0


async def test_text_waits_for_credit_and_tensors_do_not() -> None:
    async def run(request: Request) -> None:
        for _ in range(3):
            request.emit(m.Delta(0, "word "))
            request.emit_tensors({"x": Tensor("uint8", (1,), memoryview(b"x"))})
        request.emit(m.Done())

    one, wire = start(run, credit=1)
    await turns()
    assert (tensors_of(wire), text_of(wire.events)) == ([0, 1, 2], "word ")
    one.credit("r", LARGE)
    await turns()
    assert text_of(wire.events) == "word word word "
    assert isinstance(wire.events[-1], m.Done)


async def test_a_failure_does_not_wait_for_tensors() -> None:
    async def run(request: Request) -> None:
        for _ in range(3):
            request.emit_tensors(LARGE_TENSOR)
        raise EngineError(m.Failed(500, "no"))

    one, wire = client(run, store := RefStore(100))
    one.submit(m.Submit("r", "make"), b"", refuse=None)
    await turns()
    assert (wire.events[-1], one.requests) == (m.Failed(500, "no"), {})
    one.release("r")
    assert store.size == 0


@pytest.mark.parametrize("end", [lambda one: one.abort("r"), Client.cancel_all, Client.expire])
async def test_no_tensor_is_held_for_a_client_that_is_gone(end: Callable[[Client], None]) -> None:
    async def makes_to_the_last(request: Request) -> None:
        await make_three(request)
        try:
            await asyncio.Event().wait()
        finally:
            request.emit_tensors(LARGE_TENSOR)

    for run in (make_three, makes_to_the_last):
        one, _ = client(run, store := RefStore(100))
        one.submit(m.Submit("r", "make"), b"", refuse=None)
        await turns()
        assert len(store) == 3
        end(one)
        await turns()
        assert (store.size, one.requests) == (0, {})
