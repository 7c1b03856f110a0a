"""Arguments of an omni model's talker that cannot work, as far as that can be judged without the model."""

from __future__ import annotations

from collections.abc import Iterator

from app.engines.base import EngineError
from app.engines.omni.talker.sampling import TalkerSampling
from app.engines.speech.sampling import sampling_of
from app.settings.schema import StageConfig


def talker_problems(stage: StageConfig) -> Iterator[str]:
    """One sentence for a sampling parameter of a talker that cannot be; of another llm stage vLLM judges them."""
    if stage.model_stage != "talker":
        return
    try:
        sampling_of(TalkerSampling, stage.default_sampling_params, {}, "talker")
    except EngineError as error:
        yield f"default_sampling_params: {error}"
