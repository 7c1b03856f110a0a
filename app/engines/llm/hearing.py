"""vLLM's serving classes for speech recognition, with our decoding of recordings, and what they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from vllm.entrypoints.speech_to_text.base.serving import SpeechToTextBaseServing
from vllm.entrypoints.speech_to_text.transcription.serving import OpenAIServingTranscription
from vllm.entrypoints.speech_to_text.translation.serving import OpenAIServingTranslation
from vllm.multimodal.audio import split_audio

from app.engines.llm.errors import bad_request
from app.engines.llm.frontend import Frontend, apart
from app.engines.llm.whisper import refined
from app.media.recording import read_recording
from app.settings.schema import MediaConfig

_SHORTEST_S = 0.1
"""As OpenAI has it."""

Samples = np.ndarray[Any, np.dtype[np.float32]]


class _Hearing(SpeechToTextBaseServing):  # type: ignore[misc]
    limits: MediaConfig

    @cached_property
    def model_cls(self) -> type[Any]:
        """vLLM's hook: the class that is asked for prompts, and what the model can do."""
        return refined(super().model_cls, self.model_config)

    @classmethod
    def beside(cls, stock: SpeechToTextBaseServing, frontend: Frontend, limits: MediaConfig) -> _Hearing:
        """One that is set up like `stock`, which vLLM made; recordings are held to `limits`."""
        made = cls(
            frontend,
            stock.models,
            request_logger=stock.request_logger,
            enable_force_include_usage=stock.enable_force_include_usage,
        )
        made.limits = limits
        return made

    def _decode_and_chunk_speech(self, audio_data: bytes) -> tuple[list[Samples], float]:
        """vLLM's hook, called in its threads: the clips of a recording, and how long it is in seconds.

        Raises:
            MediaError: it cannot be read, or is too long.
        """
        config = self.asr_config
        rate = int(config.sample_rate)
        allowed = (_SHORTEST_S, self.limits.max_seconds)
        samples = read_recording(audio_data, rate=rate, limits=self.limits, seconds=allowed)
        seconds = len(samples) / rate
        if not config.allow_audio_chunking or config.max_audio_clip_s is None or seconds <= config.max_audio_clip_s:
            return [samples], seconds
        clips = split_audio(
            audio_data=samples,
            sample_rate=rate,
            max_clip_duration_s=config.max_audio_clip_s,
            overlap_duration_s=config.overlap_chunk_second,
            min_energy_window_size=config.min_energy_split_window_size,
        )
        return clips, seconds

    async def _detect_language(self, *args: Any, **options: Any) -> str:
        """A generation of its own: that vLLM has taken it does not mean that it has taken the request."""
        try:
            with apart():
                language: str = await super()._detect_language(*args, **options)
        except AssertionError as error:  # the likeliest token is no language: a model without languages, or silence
            message = "the language cannot be told from the recording; say which it is"
            raise bad_request(message, param="language", code="missing_required_parameter") from error
        return language

    def _get_verbose_segments(self, tokens: Sequence[int], *args: Any, **options: Any) -> list[Any]:
        """A clip in which nothing is said has no segments; vLLM looks for the last one."""
        if all(token == self.tokenizer.eos_token_id for token in tokens):
            return []
        segments: list[Any] = super()._get_verbose_segments(tokens, *args, **options)
        return segments


class Transcribing(_Hearing, OpenAIServingTranscription):  # type: ignore[misc]
    """Writes down what is said."""


class Translating(_Hearing, OpenAIServingTranslation):  # type: ignore[misc]
    """Writes it down in another language."""
