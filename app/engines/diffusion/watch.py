"""One pipeline call while it runs: its steps are counted and reported, and it is left when nobody wants it any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from app.engines.diffusion import previews
from app.engines.diffusion.batching import Row
from app.engines.diffusion.failures import AbandonedError

logger = logging.getLogger("app.diffusion")


class Watch:
    """Sees a call through what every pipeline has: its modules are called, and its progress bar moves.

    `step` steps are done. `enter_loop` and `leave_loop` are called around the denoising.
    """

    def __init__(
        self, rows: Sequence[Row], tick: Callable[[], None], agree: Callable[[bool], bool] | None = None
    ) -> None:
        """`tick` is called for every sign of life.

        Ranks that make a call together leave it together: after a step, when they `agree` to.
        """
        self._rows = rows
        self._tick = tick
        self._agree = agree
        self._steps = rows[0].call.steps
        self._in_loop = False
        self._latents: torch.Tensor | None = None
        self.step = 0
        self.enter_loop = self.leave_loop = _nothing

    def check(self, *_: Any) -> None:
        """As a forward pre-hook: leave the call if it is in vain.

        Raises:
            AbandonedError: every row is cancelled.
        """
        self._tick()
        if self._agree is None and self._in_vain:
            raise AbandonedError

    @property
    def _in_vain(self) -> bool:
        return all(row.cancelled for row in self._rows)

    # ------------------------------------------------------------------------------------------------ steps

    def progress_bar(self, iterable: Iterable[Any] | None = None, total: int | None = None, **_: Any) -> Bar:
        """In place of the pipeline's method of that name."""
        items = list(iterable) if iterable is not None else None
        self._steps = len(items) if items is not None else total or self._steps
        self.step = 0
        if not self._in_loop:
            self._in_loop = True
            self.enter_loop()
        return Bar(self, items)

    def end_loop(self) -> None:
        """Also called when it has ended already, or never begun."""
        if self._in_loop:
            self._in_loop = False
            self.leave_loop()

    def advance(self, steps: int) -> None:
        self.step += steps
        self.check()
        if self._agree is not None and self._agree(self._in_vain):
            raise AbandonedError
        for row in self._rows:
            row.listener.stepped(row, self.step, max(self._steps, self.step))

    # ------------------------------------------------------------------------------------------------ previews

    @property
    def wants_previews(self) -> bool:
        return any(row.call.previews for row in self._rows)

    def after_step(self, pipe: Any, index: int, _: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As the pipeline's `callback_on_step_end`: decode the rows for which a preview is due."""
        due = {
            position: number
            for position, row in enumerate(self._rows)
            if not (row.cancelled and self._agree is None)
            and (number := previews.due(index + 1, self._steps, row.call.previews)) is not None
        }
        before, self._latents = self._latents, tensors["latents"]
        if due:
            call = self._rows[0].call
            try:
                latents = previews.ahead(pipe.scheduler, index, before, self._latents)
                pictures = previews.decode(pipe, latents[list(due)], call.width, call.height)
            except (RuntimeError, ValueError) as error:  # also where memory is short: the picture itself may still fit
                logger.warning("no preview of a %s call: %s", type(pipe).__name__, error)
                return tensors
            for (position, number), picture in zip(due.items(), pictures, strict=True):
                row = self._rows[position]
                row.listener.previewed(row, number, picture)
        return tensors


class Bar:
    """What pipelines use of tqdm."""

    def __init__(self, watch: Watch, items: list[Any] | None) -> None:
        self._watch = watch
        self._items = items or []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.end_loop()

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self._watch.advance(1)
        self._watch.end_loop()

    def update(self, steps: int = 1) -> None:
        self._watch.advance(steps)

    def close(self) -> None:
        self._watch.end_loop()

    def set_description(self, *_: Any, **__: Any) -> None:
        """Nobody looks at it."""


def _nothing() -> None:
    """Nobody shares the loop."""
