"""Arguments of a speech stage that cannot work, as far as that can be judged without its model."""

from __future__ import annotations

from collections.abc import Iterator

from app.engines.speech.options import read_options
from app.settings.rules_options import option_problems
from app.settings.schema import StageConfig


def speech_problems(stage: StageConfig) -> Iterator[str]:
    """One sentence for each argument or combination that cannot work, with what to do."""
    yield from option_problems(read_options, stage)
    if stage.model == "demo":
        for name in ("family", "vocoder", "speaker_embeddings"):
            if stage.engine_args.get(name):
                yield f"--{name.replace('_', '-')} is for models of your own, and the demo's voice is none; remove it"
