from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from app.engines.speech.turns import Turns


class Work:
    """Pieces of work that wait on their thread until they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._gate = threading.Semaphore(0)

    def piece(self, name: str) -> Callable[[], None]:
        return partial(self._do, name)

    def _do(self, name: str) -> None:
        self.begun.append(name)
        assert self._gate.acquire(timeout=20)

    def let_go(self, count: int) -> None:
        self._gate.release(count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.01)


async def test_who_has_least_left_to_hear_is_next() -> None:
    turns, work = Turns(1), Work()
    tasks = [asyncio.create_task(turns.take(0.0, work.piece("first")))]
    await until(lambda: work.begun == ["first"])
    for name, due in (("far ahead", 9.0), ("new", 1.0), ("as new", 1.0), ("late", 0.5)):
        tasks.append(asyncio.create_task(turns.take(due, work.piece(name))))
        await asyncio.sleep(0)
    work.let_go(5)
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert work.begun == ["first", "late", "new", "as new", "far ahead"]
    turns.close()


async def test_a_turn_is_not_lost_with_who_waited_for_it() -> None:
    turns, work = Turns(1), Work()
    first = asyncio.create_task(turns.take(0.0, work.piece("first")))
    await until(lambda: work.begun == ["first"])
    leaving, staying = (asyncio.create_task(turns.take(due, work.piece(str(due)))) for due in (1.0, 2.0))
    await asyncio.sleep(0)
    leaving.cancel()
    work.let_go(2)
    await asyncio.wait_for(asyncio.gather(first, staying), 20)
    assert work.begun == ["first", "2.0"]
    assert leaving.cancelled()
    turns.close()


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, work = Turns(1), Work()
    pass_on = turns._pass_on

    def pass_on_and_leave() -> None:
        """Between the turn of the one that leaves and its first step with it."""
        pass_on()
        leaving.cancel()

    monkeypatch.setattr(turns, "_pass_on", pass_on_and_leave)
    first = asyncio.create_task(turns.take(0.0, work.piece("first")))
    await until(lambda: work.begun == ["first"])
    leaving, staying = (asyncio.create_task(turns.take(due, work.piece(str(due)))) for due in (1.0, 2.0))
    await asyncio.sleep(0)
    work.let_go(2)
    await asyncio.wait_for(asyncio.gather(first, staying), 20)
    assert leaving.cancelled()
    assert work.begun == ["first", "2.0"]
    turns.close()


async def test_what_fails_gives_its_turn_back() -> None:
    turns = Turns(1)

    def fail() -> None:
        raise RuntimeError("no sound")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no sound"):
            await asyncio.wait_for(turns.take(0.0, fail), 20)
    turns.close()
