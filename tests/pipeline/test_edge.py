"""How long nothing may move on an edge, and who is to blame then; tests/pipeline/test_chain.py has the rest."""

from __future__ import annotations

import math

from app.cluster import messages as m
from app.pipeline.edge import Part, TensorEdge
from app.pipeline.request import RequestStream
from app.telemetry.metrics import Metrics
from app.telemetry.requests import StageMeter

LIMIT_S = 10.0


class Clock:
    """The time of the event loop."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def edge() -> tuple[TensorEdge, Clock, RequestStream]:
    """An edge between requests that have not been sent, and the one that is fed."""
    streams = [
        RequestStream(None, m.Submit("r", kind), b"", 0, StageMeter(Metrics(), 0))  # type: ignore[arg-type]
        for kind in ("make", "take")
    ]
    one, clock = TensorEdge(Part("thinker", streams[0]), Part("talker", streams[1], LIMIT_S)), Clock()
    one._clock = clock
    one.move()
    return one, clock, streams[1]


def tensors(number: int) -> m.Tensors:
    return m.Tensors(number, memoryview(b"pack"), 4)


async def test_who_sent_nothing_is_to_blame() -> None:
    one, clock, _ = edge()
    clock.now += LIMIT_S - 0.1
    assert one.overdue() is None
    clock.now += 0.2
    error = one.overdue()
    assert error is not None
    assert (error.status, error.body.error.code) == (504, m.INPUT_TIMEOUT)
    assert error.body.error.message == "stage talker got nothing from stage thinker for 10 s"


async def test_who_has_input_and_makes_nothing_of_it_is_to_blame() -> None:
    message = "stage talker made nothing of what stage thinker had sent it for 10 s"
    for feed in (lambda one: one.pass_on(tensors(0)), TensorEdge.end):
        one, clock, _ = edge()
        clock.now += LIMIT_S - 0.1
        feed(one)
        assert one.due == clock.now + LIMIT_S
        clock.now += LIMIT_S
        error = one.overdue()
        assert error is not None
        assert error.body.error.message == message


async def test_every_sign_of_life_counts() -> None:
    one, clock, consumer = edge()
    one.pass_on(tensors(0))
    for sign in (one.move, lambda: consumer.on_consumed(1), lambda: one.pass_on(tensors(1))):
        clock.now += LIMIT_S - 1
        assert one.overdue() is None
        sign()
    assert one.due == clock.now + LIMIT_S


async def test_time_in_which_nobody_asked_does_not_count() -> None:
    one, clock, _ = edge()
    clock.now += 1000
    one.pause(1000)
    assert one.overdue() is None


async def test_a_stage_that_is_done_waits_for_nothing() -> None:
    one, clock, consumer = edge()
    one.pass_on(tensors(0))
    one.close()
    clock.now += 1000
    assert (one.due, one.overdue()) == (math.inf, None)
    one.pass_on(tensors(1))
    one.end()
    assert list(consumer._inputs.unsent()) == [(memoryview(b"pack"), False)]
