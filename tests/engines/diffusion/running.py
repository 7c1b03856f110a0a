"""A runner on a tiny pipeline, without an event loop."""

from __future__ import annotations

from typing import Any

from app.engines.base import EngineError
from app.engines.diffusion.batching import Drawn, Outcome, Row
from app.engines.diffusion.call import Call, choose, plan
from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.offer import Offer, survey
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.pieces import Pieces
from app.engines.diffusion.pixels import Pixels
from app.engines.diffusion.run import Runner
from app.protocol.pictures import PictureTask
from tests.engines.diffusion.asking import CALLS


class Recorder:
    """A listener that keeps what it is told; `cancel_at`: a step after which its row is not wanted any more."""

    def __init__(self, cancel_at: int = 0) -> None:
        self.steps: list[tuple[int, int]] = []
        self.previews: list[tuple[int, Pixels]] = []
        self.films: list[list[Pixels]] = []
        self.outcome: Outcome | None = None
        self._cancel_at = cancel_at

    def started(self, row: Row) -> None:
        """Seen by its steps."""

    def stepped(self, row: Row, step: int, steps: int) -> None:
        self.steps.append((step, steps))
        if step == self._cancel_at:
            row.cancelled = True

    def previewed(self, row: Row, number: int, picture: Pixels) -> None:
        self.previews.append((number, picture))

    def filmed(self, row: Row, frames: list[Pixels]) -> None:
        assert self.outcome is None, "the frames are there already"
        self.films.append(frames)

    def finished(self, row: Row, outcome: Outcome) -> None:
        self.outcome = outcome

    @property
    def pictures(self) -> list[Pixels]:
        assert isinstance(self.outcome, Drawn), self.outcome
        return self.outcome.pictures

    @property
    def picture(self) -> Pixels:
        return self.pictures[0]

    @property
    def error(self) -> EngineError:
        assert isinstance(self.outcome, EngineError), self.outcome
        return self.outcome


def offer_of(pipe: Any, kind: str = "", **options: Any) -> Offer:
    return survey(pipe, DiffusionOptions(diffusers_call_kwargs=CALLS.get(kind, {}), **options))


def call_for(offer: Offer, asked: PictureTask, inputs: Inputs | None = None, kind: str = "image") -> Call:
    return plan(asked, choose(asked, kind, offer), inputs or Inputs(), offer)


def runner_of(pipe: Any, offer: Offer, pieces: Pieces | None = None) -> Runner:
    return Runner(pipe, offer, Adapters(pipe, DiffusionOptions()), pieces=pieces)


def draw(runner: Runner, *calls: Call, cancel_at: dict[int, int] | None = None) -> list[Recorder]:
    """Draw the first picture of each call together; `cancel_at`: position -> step."""
    recorders = [Recorder((cancel_at or {}).get(position, 0)) for position in range(len(calls))]
    runner.draw([Row(call, 0, recorder) for call, recorder in zip(calls, recorders, strict=True)])
    return recorders


class Forwards:
    """How often the modules of a pipeline have been called, by component."""

    def __init__(self, pipe: Any, *names: str) -> None:
        self.counts = dict.fromkeys(names, 0)
        for name in names:
            getattr(pipe, name).register_forward_hook(lambda *_, name=name: self._count(name))

    def _count(self, name: str) -> None:
        self.counts[name] += 1
