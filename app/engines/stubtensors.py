"""What the stub engine hands to the next stage, and what it says of what it is handed: frames of known content.

A request of kind "make" or "take" may hold `"tensors": {...}` beside "stub" (TensorScript). One frame is a step.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import msgspec

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.base import Request

MAKE, TAKE = "make", "take"
"""Request kinds: to produce frames, and to be handed them."""
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


async def make(request: Request, frames: int, step: Step, idle: Idle) -> None:
    """Produce `frames` frames and a word for each.

    `step` is what happens before each of them, and after the last; `idle` surrounds every wait for another stage.
    """
    script = msgspec.json.decode(request.body, type=_Body).tensors
    for number in range(frames):
        await step(number)
        if script.paced:
            with idle():
                await request.ready()
        rows = script.first_rows if script.first_rows and not number else script.rows
        request.emit_tensors(frame(number, rows, script.width))
        request.emit(m.Delta(0, f"w{number} "))
    await step(frames)
    _finish(request, frames)


async def take(request: Request, limit: int | None, step: Step, idle: Idle) -> None:
    """Say "number:rowsxwidth " of each frame, at most `limit` of them.

    Raises:
        AssertionError: a frame is not what was made, or not the next one.
    """
    hands_on = msgspec.json.decode(request.body, type=_Body).tensors.hands_on
    count = 0
    while count != limit:
        with idle():
            tensors = await request.next_tensors()
        if tensors is None:
            break
        await step(count)
        hidden = tensors["hidden_states"]
        number = int.from_bytes(tensors["number"].data, "little")
        assert number == count, f"frame {number} came in the place of {count}"
        assert hidden.data == content(number, hidden.size), f"frame {number} is not what was made"
        rows, width = hidden.shape
        request.emit(m.Delta(0, f"{number}:{rows}x{width} "))
        if hands_on:
            with idle():
                await request.ready()
            request.emit_tensors(frame(number, rows, width))
        count += 1
    await step(count)
    _finish(request, count)


def _finish(request: Request, frames: int) -> None:
    for event in (m.Finish(0, "stop"), m.Usage(frames, frames), m.Done()):
        request.emit(event)
