"""What Whisper is asked with: its own token for what was said before, and nothing of languages where it has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.config import SpeechToTextConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.model_executor.models.fireredasr2 import FireRedASR2ForConditionalGeneration
from vllm.model_executor.models.whisper import WhisperForConditionalGeneration

from app.engines.llm.listening import _read_by
from app.engines.llm.whisper import EnglishWhisper, Whisper, refined


def decoder_prompt(model: Any, **fields: str) -> str:
    params = SpeechToTextParams(
        audio=np.zeros(16_000, np.float32), stt_config=SpeechToTextConfig(), model_config=Any, language="en", **fields
    )
    text: str = model.get_generation_prompt(params)["decoder_prompt"]["prompt"]
    return text


def config(**generation: Any) -> Any:
    return SimpleNamespace(try_get_generation_config=lambda: generation)


def test_the_class_follows_the_generation_config() -> None:
    assert refined(WhisperForConditionalGeneration, config()) is Whisper
    assert refined(WhisperForConditionalGeneration, config(is_multilingual=True)) is Whisper
    assert refined(WhisperForConditionalGeneration, config(is_multilingual=False)) is EnglishWhisper
    assert refined(FireRedASR2ForConditionalGeneration, config()) is FireRedASR2ForConditionalGeneration


def test_prompts_of_whisper() -> None:
    rest = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    assert decoder_prompt(Whisper) == rest
    assert decoder_prompt(Whisper, request_prompt="<|prev|> x") == "<|startofprev|><|prev|> x" + rest


def test_prompts_of_english_models() -> None:
    rest = "<|startoftranscript|><|notimestamps|>"
    assert decoder_prompt(EnglishWhisper) == rest
    assert decoder_prompt(EnglishWhisper, request_prompt="x") == "<|startofprev|>x" + rest


def test_english_models_know_no_other_language() -> None:
    assert EnglishWhisper.validate_language(None) == EnglishWhisper.validate_language("en") == "en"
    with pytest.raises(ValueError, match=r"English \(en\) only, not 'de'"):
        EnglishWhisper.validate_language("de")
    assert not EnglishWhisper.supports_explicit_language_detection


def test_what_a_model_is_told_is_read_from_its_code() -> None:
    told = {"language", "to_language", "request_prompt", "hotwords", "task_type"}
    assert _read_by(Whisper) & told == _read_by(EnglishWhisper) & told == {"language", "request_prompt", "task_type"}
    assert _read_by(FireRedASR2ForConditionalGeneration) & told == {"language"}
