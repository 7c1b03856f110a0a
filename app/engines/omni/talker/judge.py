"""From a speech task to the voice and the sampling parameters of a talker; what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from app.engines.omni.talker.sampling import TalkerSampling
from app.engines.refusal import refuse
from app.engines.speech.judge import manner_of
from app.protocol.speechtask import SpeechCard, SpeechTask


def judge(task: SpeechTask, card: SpeechCard, defaults: Mapping[str, Any]) -> tuple[str, TalkerSampling]:
    """One of the card's voices, and how to sample. `defaults` are the stage's parameters over the checkpoint's.

    Raises:
        EngineError: 400; `param` is the field, and the message says what is possible.
    """
    if task.text:
        refuse("a talker says what its thinker thinks, and no other text", "input")
    seed = {} if task.seed is None else {"seed": task.seed}
    chosen = {name: value for name, value in task.extra.items() if value is not None}
    manner = manner_of(msgspec.structs.replace(task, extra=seed | chosen), card, TalkerSampling, defaults)
    return manner.voice, cast("TalkerSampling", manner.sampling)
