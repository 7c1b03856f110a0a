"""How Whisper is asked, where vLLM's own way does not fit: text to go on from, and models that know English only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vllm.config import ModelConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.model_executor.models.whisper import WhisperForConditionalGeneration


class Whisper(WhisperForConditionalGeneration):  # type: ignore[misc]
    """Never made: serving asks the class for prompts."""

    @classmethod
    def get_generation_prompt(cls, stt_params: SpeechToTextParams) -> Any:
        """vLLM's, with the token that Whisper has for what was said before; vLLM writes `<|prev|>`, which is none."""
        prompt = super().get_generation_prompt(stt_params)
        return _rewritten(prompt, "<|prev|>", "<|startofprev|>") if stt_params.request_prompt else prompt


class EnglishWhisper(Whisper):
    """The models whose names end in `.en`: to be told a language or a task puts them off."""

    supported_languages: ClassVar[Mapping[str, str]] = {"en": "English"}
    supports_explicit_language_detection = False

    @classmethod
    def validate_language(cls, language: str | None) -> str:
        """
        Raises:
            ValueError: it is not English.
        """
        if language not in (None, "en"):
            raise ValueError(f"this model knows English (en) only, not {language!r}")
        return "en"

    @classmethod
    def get_generation_prompt(cls, stt_params: SpeechToTextParams) -> Any:
        """Without language and task."""
        return _rewritten(super().get_generation_prompt(stt_params), "<|en|><|transcribe|>", "")


def refined(model: type[Any], config: ModelConfig) -> type[Any]:
    """The class to ask in place of `model`, which vLLM has chosen by `config`."""
    if model is not WhisperForConditionalGeneration:
        return model
    multilingual = (config.try_get_generation_config() or {}).get("is_multilingual", True)
    return Whisper if multilingual else EnglishWhisper


def _rewritten(prompt: Any, old: str, new: str) -> Any:
    decoder = prompt["decoder_prompt"]
    return prompt | {"decoder_prompt": decoder | {"prompt": decoder["prompt"].replace(old, new, 1)}}
