"""Arguments of a stage that its engine does not take: asked of the engine's own options, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.settings.schema import StageConfig


def option_problems(read_options: Callable[[StageConfig], object], stage: StageConfig) -> Iterator[str]:
    """One sentence for the first argument that is unknown or cannot be; without the stage, with which all begin."""
    try:
        read_options(stage)
    except ValueError as error:
        yield str(error).partition(": ")[2]
