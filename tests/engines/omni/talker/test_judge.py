"""Whose sampling parameters hold, and what a talker refuses."""

from __future__ import annotations

from typing import Any

import pytest

from app.engines.base import EngineError
from app.engines.omni.talker.judge import judge
from app.protocol.speechtask import SpeechCard, SpeechTask, VoiceSample

CARD = SpeechCard(family="Qwen2.5-Omni", voices=["Chelsie", "Ethan"], default_voice="Chelsie", sample_rate=24_000)
DEFAULTS = {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "repetition_penalty": 1.05, "max_tokens": 4096}


def test_the_defaults_hold_where_a_request_is_silent() -> None:
    voice, sampling = judge(SpeechTask(extra={"top_k": None}), CARD, DEFAULTS)
    assert voice == "Chelsie"
    assert {name: getattr(sampling, name) for name in DEFAULTS} == DEFAULTS
    assert sampling.seed is None


def test_a_request_is_stronger_and_its_extra_the_strongest() -> None:
    task = SpeechTask(voice="ethan", seed=1, extra={"temperature": 0, "max_tokens": 5})
    voice, sampling = judge(task, CARD, DEFAULTS)
    assert (voice, sampling.seed, sampling.temperature, sampling.max_tokens, sampling.top_p) == ("Ethan", 1, 0, 5, 0.8)
    assert judge(SpeechTask(seed=1, extra={"seed": 2}), CARD, DEFAULTS)[1].seed == 2


@pytest.mark.parametrize(
    ("task", "param"),
    [
        (SpeechTask(extra={"temprature": 1}), "temprature"),
        (SpeechTask(extra={"temperature": True}), "temperature"),
        (SpeechTask(extra={"top_k": 1.5}), "top_k"),
        (SpeechTask(extra={"top_k": -1}), "top_k"),
        (SpeechTask(extra={"max_tokens": 0}), "max_tokens"),
        (SpeechTask(extra={"seed": "one"}), "seed"),
        (SpeechTask(extra={"seed": 2**63}), "seed"),
        (SpeechTask(extra={"repetition_penalty": 0}), "repetition_penalty"),
        (SpeechTask(voice="Ethel"), "voice"),
        (SpeechTask(text="Say this."), "input"),
        (SpeechTask(speed=2), "speed"),
        (SpeechTask(language="fr"), "language"),
        (SpeechTask(instructions="whisper"), "instructions"),
        (SpeechTask(sample=VoiceSample(data=b"RIFF")), "ref_audio"),
    ],
)
def test_what_a_talker_cannot_do_is_refused(task: SpeechTask, param: str) -> None:
    with pytest.raises(EngineError) as caught:
        judge(task, CARD, DEFAULTS)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


def test_a_misspelt_parameter_is_recognised() -> None:
    extra: dict[str, Any] = {"temprature": 1}
    with pytest.raises(EngineError, match="did you mean 'temperature'"):
        judge(SpeechTask(extra=extra), CARD, DEFAULTS)
