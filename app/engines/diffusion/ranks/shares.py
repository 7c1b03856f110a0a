"""What a rank shares with the others in every call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.ranks.decoding import share_decoding
from app.engines.diffusion.ranks.guidance import Guidance
from app.engines.diffusion.ranks.parallel import split
from app.engines.diffusion.ranks.world import World


class Shares:
    """One rank's part of a pipeline that several ranks run together."""

    def __init__(self, world: World, model: Path) -> None:
        """`model` is where the pipeline's files lie."""
        self._world = world
        self._model = model
        self._guidance = Guidance(world) if world.layout.cfg > 1 else None
        self.agree = world.agree
        """What rank 0 wishes, asked by every rank at the same point."""

    def split(self, pipe: Any, options: DiffusionOptions) -> Iterator[str]:
        """Split what the options say; yields what was done.

        Raises:
            ValueError: the pipeline cannot be split so.
        """
        yield from split(pipe, options, self._model.joinpath, self._world)
        if self._guidance is not None:
            for model in denoisers(pipe).values():
                self._guidance.install(model)
            yield "the two passes of guidance run on different ranks"
        if self._world.layout.vae > 1:
            yield share_decoding(pipe, options.vae_parallel_mode, self._world)

    @contextmanager
    def during(self, pipe: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Share the call of `pipe` with these arguments that is made within."""
        with self._guidance.during(pipe, arguments) if self._guidance is not None else nullcontext():
            yield
