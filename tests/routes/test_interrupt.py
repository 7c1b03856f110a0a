from __future__ import annotations

import asyncio

import pytest

from app.routes.interrupt import Interrupt


class HappenedError(Exception):
    pass


async def test_the_happening_takes_the_place_of_the_cancellation() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event.wait())
    asyncio.get_running_loop().call_later(0.01, event.set)
    with pytest.raises(HappenedError), interrupt.raising(HappenedError()):
        await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the task can go on"
    await interrupt.close()


async def test_what_has_happened_already_interrupts_at_the_next_wait() -> None:
    event = asyncio.Event()
    event.set()
    interrupt = Interrupt(event.wait())
    await asyncio.sleep(0.01)
    with pytest.raises(HappenedError), interrupt.raising(HappenedError()):
        await asyncio.sleep(5)
    await interrupt.close()


async def test_a_happening_after_the_body_hurts_nobody() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event.wait())
    with interrupt.raising(HappenedError()):
        await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0.01)
    await interrupt.close()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    interrupt = Interrupt(asyncio.Event().wait())

    async def body() -> None:
        with interrupt.raising(HappenedError()):
            await asyncio.sleep(5)

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await interrupt.close()


async def test_of_two_happenings_at_once_the_outer_one_counts() -> None:
    event = asyncio.Event()
    outer, inner = Interrupt(event.wait()), Interrupt(event.wait())
    asyncio.get_running_loop().call_later(0.01, event.set)
    guards = outer.raising(HappenedError("outer")), inner.raising(HappenedError("inner"))
    with pytest.raises(HappenedError, match="outer"), guards[0], guards[1]:
        await asyncio.sleep(5)
    await outer.close()
    await inner.close()


async def test_an_error_of_the_body_is_not_replaced() -> None:
    event = asyncio.Event()
    interrupt = Interrupt(event.wait())
    asyncio.get_running_loop().call_later(0.01, event.set)

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine"), interrupt.raising(HappenedError()):
        await body()
    await interrupt.close()
