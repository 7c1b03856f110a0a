"""What the stub engine hands to the next stage, and what it says of what it is handed: frames of known content.

A chat, or a request of kind "make" or "take", may hold `"tensors": {...}` beside "stub" (TensorScript). One frame is a
step.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager

import msgspec

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.base import Request

MAKE, TAKE, TALK, VOCODE = "make", "take", "talk", "code2wav"
"""Request kinds: to produce frames, to be handed them; what the later stages of an omni model are asked for."""
Step = Callable[[int], Awaitable[None]]
Idle = Callable[[], AbstractContextManager[None]]
_PATTERN = random.Random(0).randbytes(1 << 20)
_STRIDE = 977


class TensorScript(msgspec.Struct, forbid_unknown_fields=True):
    """How many `rows` of how many numbers a frame has; the first one, the prompt, has `first_rows` if that is not 0.
    `paced`: the producer waits until the next stage takes more. `hands_on`: who is handed a frame makes another of it.
    """

    rows: int = 1
    width: int = 8
    first_rows: int = 0
    paced: bool = False
    hands_on: bool = False


class _Body(msgspec.Struct):
    tensors: TensorScript = msgspec.field(default_factory=TensorScript)


def content(number: int, size: int) -> bytes:
    """The bytes of frame `number`: no two of the first hundred frames have equal pieces at one place."""
    start = number * _STRIDE % len(_PATTERN)
    return (_PATTERN * (1 + (start + size) // len(_PATTERN)))[start : start + size]


def frame(number: int, rows: int, width: int) -> dict[str, Tensor]:
    """Frame `number` as a thinker would make it."""
    return {
        "hidden_states": Tensor("bfloat16", (rows, width), memoryview(content(number, 2 * rows * width))),
        "number": Tensor("int64", (1,), memoryview(number.to_bytes(8, "little"))),
    }


def frames_of(request: Request) -> Callable[[int], dict[str, Tensor]]:
    """The frames that a request asks for, by their number."""
    script = msgspec.json.decode(request.body, type=_Body).tensors

    def made(number: int) -> dict[str, Tensor]:
        rows = script.first_rows if script.first_rows and not number else script.rows
        return frame(number, rows, script.width)

    return made


async def make(request: Request, frames: int, step: Step, idle: Idle) -> None:
    """Produce `frames` frames and a word for each.

    `step` is what happens before each of them, and after the last; `idle` surrounds every wait for another stage.
    """
    script, made = msgspec.json.decode(request.body, type=_Body).tensors, frames_of(request)
    for number in range(frames):
        await step(number)
        if script.paced:
            with idle():
                await request.ready()
        request.emit_tensors(made(number))
        request.emit(m.Delta(0, f"w{number} "))
    await step(frames)
    _finish(request, frames)


async def handed(request: Request, limit: int | None, idle: Idle) -> AsyncIterator[tuple[int, int, int]]:
    """Number, rows and width of each frame that comes, at most `limit` of them.

    Raises:
        AssertionError: a frame is not what was made, or not the next one.
    """
    count = 0
    while count != limit:
        with idle():
            tensors = await request.next_tensors()
        if tensors is None:
            return
        hidden = tensors["hidden_states"]
        number = int.from_bytes(tensors["number"].data, "little")
        assert number == count, f"frame {number} came in the place of {count}"
        assert hidden.data == content(number, hidden.size), f"frame {number} is not what was made"
        rows, width = hidden.shape
        yield number, rows, width
        count += 1


async def take(request: Request, limit: int | None, step: Step, idle: Idle) -> None:
    """Say "number:rowsxwidth " of each frame that `handed` gives."""
    hands_on = msgspec.json.decode(request.body, type=_Body).tensors.hands_on
    count = 0
    async for number, rows, width in handed(request, limit, idle):
        await step(number)
        request.emit(m.Delta(0, f"{number}:{rows}x{width} "))
        if hands_on:
            await _hand_on(request, frame(number, rows, width), idle)
        count += 1
    await step(count)
    _finish(request, count)


async def talk(request: Request, limit: int | None, step: Step, idle: Idle) -> None:
    """Make a frame of each that `handed` gives, as a talker does, and say nothing."""
    count = 0
    async for number, rows, width in handed(request, limit, idle):
        await step(number)
        await _hand_on(request, frame(number, rows, width), idle)
        count += 1
    await step(count)
    for event in (m.Usage(0, count), m.Done()):
        request.emit(event)


async def _hand_on(request: Request, tensors: dict[str, Tensor], idle: Idle) -> None:
    with idle():
        await request.ready()
    request.emit_tensors(tensors)


def _finish(request: Request, frames: int) -> None:
    for event in (m.Finish(0, "stop"), m.Usage(frames, frames), m.Done()):
        request.emit(event)
