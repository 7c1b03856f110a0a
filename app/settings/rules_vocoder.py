"""Arguments of a vocoder stage that cannot work, as far as that can be judged without its model."""

from __future__ import annotations

from collections.abc import Iterator

from app.engines.omni.code2wav.options import read_options
from app.settings.schema import StageConfig


def vocoder_problems(stage: StageConfig) -> Iterator[str]:
    """One sentence for each argument that cannot work, with what to do."""
    try:
        read_options(stage)
    except ValueError as error:
        yield str(error).partition(": ")[2]  # without the stage, which everybody's problems begin with
