"""A call is seen through its progress bar, however its pipeline uses it."""

from __future__ import annotations

import pytest

from app.engines.diffusion.batching import Row
from app.engines.diffusion.failures import AbandonedError
from app.engines.diffusion.watch import Watch
from tests.engines.diffusion.asking import Pipelines, task
from tests.engines.diffusion.running import Recorder, call_for, offer_of


class Loop:
    """A watched call of one row, and how often its loop was entered and left."""

    def __init__(self, pipe: object, cancel_at: int = 0) -> None:
        self.recorder = Recorder(cancel_at)
        self.row = Row(call_for(offer_of(pipe), task()), 0, self.recorder)
        self.ticks = self.entered = self.left = 0
        self.watch = Watch([self.row], self._tick)
        self.watch.enter_loop, self.watch.leave_loop = self._enter, self._leave

    def _tick(self) -> None:
        self.ticks += 1

    def _enter(self) -> None:
        self.entered += 1

    def _leave(self) -> None:
        self.left += 1


@pytest.fixture
def loop(tiny_pipeline: Pipelines) -> Loop:
    return Loop(tiny_pipeline("sd"))


def test_a_bar_that_is_updated(loop: Loop) -> None:
    with loop.watch.progress_bar(total=2) as bar:
        assert (loop.entered, loop.left) == (1, 0)
        bar.set_description("drawing")
        bar.update()
        bar.update(1)
    assert loop.recorder.steps == [(1, 2), (2, 2)]
    assert (loop.entered, loop.left) == (1, 1)


def test_a_bar_that_is_iterated_over(loop: Loop) -> None:
    assert list(loop.watch.progress_bar(iter("abc"))) == ["a", "b", "c"]
    assert loop.recorder.steps == [(1, 3), (2, 3), (3, 3)]
    assert (loop.entered, loop.left) == (1, 1)
    assert loop.ticks == 3


def test_a_bar_that_is_closed(loop: Loop) -> None:
    bar = loop.watch.progress_bar(total=1)
    bar.update()
    bar.close()
    loop.watch.end_loop()
    assert loop.left == 1


def test_a_cancelled_call_is_left_at_its_next_sign_of_life(loop: Loop) -> None:
    loop.watch.check()
    loop.row.cancelled = True
    with pytest.raises(AbandonedError):
        loop.watch.check()
    with pytest.raises(AbandonedError), loop.watch.progress_bar(total=1) as bar:
        bar.update()
    assert loop.recorder.steps == []
    assert loop.left == 1
