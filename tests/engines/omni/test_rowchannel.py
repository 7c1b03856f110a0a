"""The channel of rows: to whom they go, what of them is dropped, and that neither side gets far ahead."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.engines.omni.rowchannel import RowReceiver, Rows, RowSender, Span, Step
from tests.engines.llm.recorder import until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[RowReceiver]:
    made = RowReceiver()
    yield made
    made.close()


@pytest.fixture
def sender(receiver: RowReceiver) -> Iterator[RowSender]:
    """A worker's, which ends with its process; here it has to be ended."""
    made = RowSender(receiver.address)
    context = made._socket.context
    yield made
    context.destroy(linger=0)


def step(*spans: Span) -> tuple[Step, memoryview]:
    """Rows of two bfloat16 numbers, which count from 0."""
    rows = sum(span.count for span in spans)
    return Step("bfloat16", 2, list(spans)), memoryview(bytes(range(4 * rows)))


async def test_each_span_goes_to_its_request_only(receiver: RowReceiver, sender: RowSender) -> None:
    mine: list[Rows] = []
    others: list[Rows] = []
    key, other = receiver.add(mine.append), receiver.add(others.append)
    sender.send(*step(Span(other, 0, 1), Span(key, 5, 2, b"pos"), Span(key + 1, 0, 3), Span(other, 1, 1)))
    await until(lambda: len(others) == 2)
    (rows,) = mine
    assert (rows.span.start, rows.span.count, rows.span.positions) == (5, 2, b"pos")
    assert (rows.dtype, rows.width, rows.size) == ("bfloat16", 2, 4)
    assert bytes(rows.data) == bytes(range(4, 12))
    assert [bytes(rows.data) for rows in others] == [bytes(range(4)), bytes(range(24, 28))]
    receiver.remove(other)
    sender.send(*step(Span(other, 2, 1), Span(key, 7, 1)))
    await until(lambda: len(mine) == 2)
    assert len(others) == 2


async def test_a_sender_waits_for_a_replica_that_does_not_read(receiver: RowReceiver, sender: RowSender) -> None:
    taken: list[Rows] = []
    key = receiver.add(taken.append)
    sent: list[int] = []
    large = memoryview(bytes(1 << 20))

    def work() -> None:
        for start in range(64):
            sender.send(Step("uint8", 1 << 20, [Span(key, start, 1)]), large)
            sent.append(start)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.5)  # nobody reads: the loop does not run
    assert 0 < len(sent) < 48
    await until(lambda: len(taken) == 64)
    await asyncio.to_thread(thread.join)
    assert [rows.span.start for rows in taken] == list(range(64))


async def test_only_we_can_reach_the_socket_which_goes_with_it() -> None:
    receiver = RowReceiver()
    path = Path(receiver.address.removeprefix("ipc://"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    receiver.close()
    assert not path.parent.exists()


async def test_a_place_whose_name_is_too_long_for_sockets_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    receiver = RowReceiver(str(deep))
    assert len(receiver.address) < 107
    receiver.close()
