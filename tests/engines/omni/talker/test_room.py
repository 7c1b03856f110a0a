"""Room in vLLM's cache: never more than there is, first come first served, all given back."""

from __future__ import annotations

import asyncio

import pytest

from app.engines.omni.talker.room import Room


class Holder:
    """Somebody who wants room and keeps it until told."""

    def __init__(self, room: Room, positions: int) -> None:
        self.holds = False
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._hold(room, positions))

    async def _hold(self, room: Room, positions: int) -> None:
        async with room.hold(positions):
            self.holds = True
            await self.leave.wait()
        self.holds = False


async def settled(*holders: Holder) -> list[bool]:
    for _ in range(10):
        await asyncio.sleep(0)
    return [holder.holds for holder in holders]


async def test_whole_blocks_in_the_order_of_asking() -> None:
    room = Room(blocks=4, block_size=16)
    first, second, third, small = (Holder(room, positions) for positions in (17, 32, 33, 1))
    holders = (first, second, third, small)
    assert await settled(*holders) == [True, True, False, False], (
        "a small one must not overtake, or a large one starves"
    )
    first.leave.set()
    assert await settled(*holders) == [False, True, False, False]
    second.leave.set()
    assert await settled(*holders) == [False, False, True, True]
    third.leave.set()
    small.leave.set()
    await asyncio.gather(*(holder.task for holder in holders))


async def test_who_stops_waiting_is_not_waited_for() -> None:
    room = Room(blocks=2, block_size=16)
    first, gone, last = (Holder(room, positions) for positions in (16, 32, 16))
    assert await settled(first, gone, last) == [True, False, False]
    gone.task.cancel()
    assert await settled(first, gone, last) == [True, False, True]
    first.task.cancel()
    last.leave.set()
    await last.task
    async with asyncio.timeout(1), room.hold(32):
        pass


async def test_more_than_there_is_means_all_of_it() -> None:
    room = Room(blocks=2, block_size=16)
    with pytest.raises(TimeoutError):
        async with room.hold(1_000), asyncio.timeout(0.01), room.hold(1):
            raise AssertionError("nothing is left")
    async with asyncio.timeout(1), room.hold(1):
        pass
