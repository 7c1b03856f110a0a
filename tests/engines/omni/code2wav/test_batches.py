"""Whose piece is made next, with whom, and what becomes of the others when one fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import pytest_asyncio

from app.engines.base import EngineError
from app.engines.omni.code2wav.batches import Batches
from app.engines.omni.code2wav.family import Step
from app.engines.omni.code2wav.frames import Chunks, Frames
from app.engines.speech.family import Samples
from app.protocol.speechtask import SpeechCard

CHUNKS = Chunks(first=10, largest=10, context=0, ahead=0)


class Utterance(Frames):
    """`error` is raised by every call that it takes part in."""

    def __init__(self, frames: int, error: Exception | None = None) -> None:
        super().__init__(CHUNKS, streamed=False)
        self.error = error
        self.push(np.zeros(frames, np.int32))
        self.finish()


class Gate:
    """A vocoder whose calls begin when they may: faults and timing are what a model cannot be asked for."""

    frame_shape = ()
    codes = 1
    token_s = 1.0
    largest = CHUNKS.largest
    card = SpeechCard(family="gate", voices=["a"], default_voice="a", sample_rate=8000)

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls: list[list[int]] = []
        self.entered = threading.Semaphore(0)

    def begin(self, voice: str, seed: int, streamed: bool) -> Utterance:
        return Utterance(1)

    def decode(self, batch: Sequence[Utterance], step: Step) -> list[Samples]:
        self.calls.append([len(utterance.codes) for utterance in batch])
        self.entered.release()
        while not self.open.wait(0.01):
            step()
        for utterance in batch:
            if utterance.error is not None:
                raise utterance.error
        return [np.full(len(utterance.codes), 0.5, np.float32) for utterance in batch]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest_asyncio.fixture
async def batches(gate: Gate) -> AsyncIterator[Batches]:
    made = Batches(gate, most=3)
    yield made
    gate.open.set()
    made.abandon()
    await asyncio.to_thread(made.close)


async def first_of(gate: Gate, batches: Batches) -> asyncio.Task[Samples]:
    """One that is being decoded."""
    first = asyncio.create_task(batches.piece(0.0, Utterance(1)))
    assert await asyncio.to_thread(gate.entered.acquire, timeout=10)
    return first


async def test_who_has_least_left_to_hear_is_next_with_as_many_as_fit(gate: Gate, batches: Batches) -> None:
    first = await first_of(gate, batches)
    dues = {9.0: 2, 7.0: 3, 8.0: 4, 6.0: 5}
    wait = [asyncio.create_task(batches.piece(due, Utterance(frames))) for due, frames in dues.items()]
    await asyncio.sleep(0)
    assert (batches.running, batches.waiting) == (1, 4)
    gate.open.set()
    assert [len(samples) for samples in await asyncio.gather(first, *wait)] == [1, 2, 3, 4, 5]
    assert gate.calls == [[1], [5, 3, 4], [2]]
    assert (batches.running, batches.waiting) == (0, 0)


async def test_a_long_one_makes_nobody_wait_in_its_call(gate: Gate, batches: Batches) -> None:
    first = await first_of(gate, batches)
    wait = [asyncio.create_task(batches.piece(due, Utterance(frames))) for due, frames in ((1, 5), (2, 40), (3, 6))]
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(first, *wait)
    assert gate.calls == [[1], [5], [40], [6]]


async def test_who_has_left_the_line_is_passed_over(gate: Gate, batches: Batches) -> None:
    first = await first_of(gate, batches)
    gone, stays = [asyncio.create_task(batches.piece(due, Utterance(frames))) for due, frames in ((1, 2), (2, 3))]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert batches.waiting == 1
    gate.open.set()
    await asyncio.gather(first, stays)
    assert gate.calls == [[1], [3]]


async def test_a_call_that_nobody_waits_for_is_left(gate: Gate, batches: Batches) -> None:
    first = await first_of(gate, batches)
    first.cancel()
    second = asyncio.create_task(batches.piece(0.0, Utterance(2)))
    assert await asyncio.to_thread(gate.entered.acquire, timeout=10)  # though the gate is closed
    gate.open.set()
    assert len(await second) == 2


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(RuntimeError("no such kernel"), 500, None), (MemoryError(), 503, "out_of_memory")],
)
async def test_one_that_fails_fails_alone(
    gate: Gate, batches: Batches, error: Exception, status: int, code: str | None
) -> None:
    first = await first_of(gate, batches)
    bad = asyncio.create_task(batches.piece(1.0, Utterance(2, error)))
    good = asyncio.create_task(batches.piece(2.0, Utterance(3)))
    await asyncio.sleep(0)
    gate.open.set()
    assert len(await good) == 3
    with pytest.raises(EngineError) as caught:
        await bad
    assert (caught.value.failed.status, caught.value.failed.code) == (status, code)
    await first
    assert gate.calls == [[1], [2, 3], [2], [3]]


async def test_abandoned_as_a_whole_it_ends_at_the_next_step(gate: Gate, batches: Batches) -> None:
    first = await first_of(gate, batches)
    batches.abandon()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(asyncio.to_thread(batches.close), 10)
