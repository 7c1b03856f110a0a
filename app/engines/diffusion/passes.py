"""Tells the passes of guidance apart while a pipeline runs: each needs a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


class Passes:
    """Counts steps, and the denoisers' calls within a step, of one pipeline call.

    `index` is the current pass within its step, `step` the current step, both from 0.
    """

    def __init__(self, on_pass: Callable[[torch.nn.Module, int], None], on_step: Callable[[int, int], None]) -> None:
        """`on_pass(denoiser, index)` is called before each pass, `on_step(step, passes)` after each step."""
        self.step = 0
        self.index = -1
        self._on_pass = on_pass
        self._on_step = on_step

    @contextmanager
    def watched(self, pipe: Any, models: Mapping[str, torch.nn.Module]) -> Iterator[None]:
        """Watch the call of `pipe` that is made within. Its scheduler must be its own."""
        advance = pipe.scheduler.step

        def step(*args: Any, **kwargs: Any) -> Any:
            result = advance(*args, **kwargs)
            self._on_step(self.step, self.index + 1)
            self.step, self.index = self.step + 1, -1
            return result

        with ExitStack() as stack:
            pipe.scheduler.step = step
            stack.callback(delattr, pipe.scheduler, "step")
            for model in models.values():
                stack.callback(model.register_forward_pre_hook(self._enter).remove)
            yield

    def _enter(self, model: torch.nn.Module, _: Any) -> None:
        self.index += 1
        self._on_pass(model, self.index)
