"""Bytes of a replica that is elsewhere: they arrive whole, as often as they are asked for, or it is told why not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import zmq

from app.cluster import messages as m
from app.cluster import pull
from app.cluster.access import Access
from app.cluster.pull import PIECE, Puller, PullError, PullTimeoutError
from app.cluster.refs import Ref, RefStore
from app.cluster.transport import Authenticator, Channel, Frames, bind, new_context, router
from tests.clusters import TOKEN, eventually, peer

LARGE = 12 * PIECE + 3
_PATTERN = bytes(range(251)) * 997  # no two pieces are equal
ACCESS = Access(TOKEN)


class Producer:
    """A data socket on tcp that answers pulls, after `pieces` of them by closing; and Pings, as any other message."""

    def __init__(self) -> None:
        self.refs = RefStore(0)
        self.pieces = 0
        self.last = -1
        self.releases_after = -1
        self.mute = False
        self._context = new_context()
        self._authenticator = Authenticator(self._context, ACCESS)
        self._authenticator.start()
        socket = router(self._context, ACCESS)
        bind(socket, "tcp://127.0.0.1:*")
        self.address = socket.get_string(zmq.LAST_ENDPOINT)
        self._channel = Channel(socket, self._on_message)

    def hold(self, size: int) -> Ref:
        """A ref that only its name is true of: who would map it would find nothing."""
        ref = self.refs.hold(b"c", "r", (_PATTERN * (size // len(_PATTERN) + 1))[:size])
        assert ref is not None
        return Ref(1, 99_999, ref.name, ref.size)

    def bytes_of(self, ref: Ref) -> bytes:
        return b"".join(self.refs.piece(ref.name, offset, PIECE) or b"" for offset in range(0, ref.size, PIECE))

    def _on_message(self, frames: Frames) -> None:
        message = m.decode_data(frames[1].buffer)
        if not isinstance(message, m.Pull):
            self._channel.send([frames[0], m.encode(m.Ping())])
        elif not self.mute:
            self.pieces += 1
            self._channel.send([frames[0], *pull.answer(self.refs, message)])
            if self.pieces == self.releases_after:
                self.refs.release(b"c", "r")
            if self.pieces == self.last:
                self._channel.close()

    async def stop(self) -> None:
        self._channel.close()
        await self._authenticator.stop()
        self._context.term()
        self.refs.close()


@pytest_asyncio.fixture
async def producer() -> AsyncIterator[Producer]:
    one = Producer()
    yield one
    await one.stop()


@pytest_asyncio.fixture
async def context() -> AsyncIterator[zmq.Context[zmq.Socket[bytes]]]:
    one = new_context()
    yield one
    one.term()


@pytest_asyncio.fixture
async def puller(context: zmq.Context[zmq.Socket[bytes]]) -> AsyncIterator[Puller]:
    one = Puller(context, ACCESS)
    yield one
    one.close()


@pytest.mark.parametrize("size", [1, PIECE, PIECE + 1, LARGE])
async def test_what_is_held_is_pulled(producer: Producer, puller: Puller, size: int) -> None:
    ref = producer.hold(size)
    data = await puller.pull(producer.address, ref)
    assert (data == producer.bytes_of(ref), data.readonly, data.nbytes) == (True, True, size)
    assert producer.pieces == -(-size // PIECE)


async def test_again_and_many_at_a_time(producer: Producer, puller: Puller) -> None:
    refs = [producer.hold(3 * PIECE + number) for number in range(5)] * 2
    for data, ref in zip(
        await asyncio.gather(*(puller.pull(producer.address, ref) for ref in refs)), refs, strict=True
    ):
        assert data == producer.bytes_of(ref)


async def test_others_are_served_meanwhile(producer: Producer, puller: Puller) -> None:
    async with peer(producer.address, TOKEN) as other:
        other.send(m.Ping())
        await other.get(m.Ping)
        transfer = asyncio.create_task(puller.pull(producer.address, producer.hold(8 * LARGE)))
        await eventually(lambda: producer.pieces > 0)
        other.send(m.Ping())
        await other.get(m.Ping)
        assert not transfer.done()
        await transfer


async def test_who_has_another_token_gets_nothing(producer: Producer, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    stranger = Puller(context, Access("a guess"))
    with pytest.raises(PullError, match="refuses our token"):
        await stranger.pull(producer.address, producer.hold(PIECE))
    assert producer.pieces == 0
    stranger.close()


async def test_what_was_released_cannot_be_pulled(producer: Producer, puller: Puller) -> None:
    ref = producer.hold(LARGE)
    producer.releases_after = 3
    for _ in range(2):
        with pytest.raises(PullError, match="its producer holds it no longer"):
            await puller.pull(producer.address, ref)
    again = producer.hold(PIECE)
    assert await puller.pull(producer.address, again) == producer.bytes_of(again)


async def test_a_producer_that_goes_in_the_middle_is_noticed_at_once(producer: Producer, puller: Puller) -> None:
    producer.last = 14
    pulls = [puller.pull(producer.address, producer.hold(LARGE)) for _ in range(2)]
    async with asyncio.timeout(pull.PATIENCE_S / 2):
        failures = await asyncio.gather(*pulls, return_exceptions=True)
    assert [str(failure) for failure in failures] == ["the connection to its producer is lost"] * 2


async def test_a_producer_that_is_silent_is_given_up(
    producer: Producer, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "PATIENCE_S", 0.3)
    ref = producer.hold(PIECE)
    producer.mute = True
    for address in (producer.address, "tcp://127.0.0.1:9"):
        with pytest.raises(PullTimeoutError, match=r"was silent for 0\.3 s"):
            await puller.pull(address, ref)
    producer.mute = False
    assert await puller.pull(producer.address, ref) == producer.bytes_of(ref)


async def test_a_transfer_that_nobody_waits_for_ends(producer: Producer, puller: Puller) -> None:
    large = producer.hold(LARGE)
    for _ in range(2 * pull.AT_ONCE):
        transfer = asyncio.create_task(puller.pull(producer.address, large))
        before = producer.pieces
        await eventually(lambda: producer.pieces > before)  # noqa: B023
        transfer.cancel()
    ref = producer.hold(PIECE)
    assert await puller.pull(producer.address, ref) == producer.bytes_of(ref)


async def test_nothing_of_a_transfer_stays(producer: Producer, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def round_trip() -> None:
        one = Puller(context, ACCESS)
        await one.pull(producer.address, producer.hold(2 * PIECE))
        one.close()
        producer.refs.release(b"c", "r")

    await round_trip()
    before = open_files()
    for _ in range(10):
        await round_trip()
    await eventually(lambda: open_files() <= before)
