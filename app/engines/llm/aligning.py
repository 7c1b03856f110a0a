"""Answers the task "align" of a forced aligner (Qwen3-ForcedAligner): when each word of a text is said in a sound.

The model reads the sound and the words, with two marks after each, and puts every mark into one of some thousand
classes: its time, in steps of 80 ms. vLLM returns the rows of the marks only (pooling type STEP).
"""

from __future__ import annotations

import asyncio
import wave
from base64 import b64decode
from io import BytesIO

import msgspec
import numpy as np
import torch
from transformers.audio_utils import resolve_language
from transformers.models.qwen3_asr import processing_qwen3_asr as processing
from vllm.inputs import TokensPrompt
from vllm.pooling_params import PoolingParams

from app.cluster.messages import Accepted, Document, Done, Usage
from app.engines.base import EngineError, Request
from app.engines.llm.errors import bad_request, engine_dead, refusal
from app.engines.llm.frontend import Frontend
from app.media.errors import MediaError
from app.media.recording import Samples, read_recording
from app.protocol.aligning import Alignment, AlignTask, Word, decode_task
from app.settings.aligner import ARCHITECTURE
from app.settings.schema import MediaConfig

_MARK = "<timestamp>"
_SOUND = "<|audio_start|><|audio_pad|><|audio_end|>"
_RATE = 16_000
_SHORTEST = _RATE // 2
"""Samples; the model was never shown less, and shorter sounds are filled up with silence."""
_NO_LANGUAGE = ("", "auto")


class Aligning:
    """What one engine aligns: nothing, if its model is no forced aligner."""

    def __init__(self, frontend: Frontend, limits: MediaConfig) -> None:
        self._frontend = frontend
        self._limits = limits
        self.tasks: list[str] = []
        if frontend.model_config.architecture != ARCHITECTURE:
            return
        self.tasks = ["align"]
        self._processor = frontend.renderer.mm_processor.info.get_hf_processor()
        config = frontend.model_config.hf_config
        self._mark: int = config.timestamp_token_id
        self._step_ms: float = config.timestamp_segment_time

    async def answer(self, request: Request) -> None:
        """Serve one request to its end.

        Raises:
            EngineError: the request is refused or failed.
        """
        try:
            task = decode_task(request.body)
        except msgspec.DecodeError as error:
            raise bad_request(f"the task is malformed: {error}") from error
        try:
            words, sound = await asyncio.to_thread(self._read, task)
            request.emit(Accepted())
            alignment, positions = await self._aligned(request.request_id, words, sound)
        except MediaError as error:
            raise error.at(task.sound_field) from error
        except Exception as error:
            if self._frontend.errored:
                raise engine_dead() from error
            raise _refused(refusal(error, prompt=task.text_field)) from error
        request.emit(Usage(positions, 0))
        request.emit(Document(msgspec.json.encode(alignment)))
        request.emit(Done())

    def _read(self, task: AlignTask) -> tuple[list[str], Samples]:
        """The words, and the sound as float32 mono (n,) at 16 kHz.

        Raises:
            EngineError: 400, the model does not know the language.
            MediaError: the sound cannot be read.
        """
        words = self._processor.split_words_for_alignment(task.text, _language(task.language))
        file = b64decode(task.file) if task.base64 else task.file
        if task.sample_rate:
            file = _as_wav(file, task.sample_rate)
        sound = read_recording(file, rate=_RATE, limits=self._limits, seconds=(0.0, self._limits.max_seconds))
        return words, sound

    async def _aligned(self, request_id: str, words: list[str], sound: Samples) -> tuple[Alignment, int]:
        """The times of the words, and how many positions the model read for them."""
        if not words:
            return Alignment([]), 0
        prompt = _SOUND + "".join(f"{word}{_MARK}{_MARK}" for word in words)
        padded = np.pad(sound, (0, max(0, _SHORTEST - len(sound))))
        tokens = self._frontend.renderer.get_tokenizer().encode(prompt, add_special_tokens=False)
        asked = TokensPrompt(prompt_token_ids=tokens, multi_modal_data={"audio": padded})
        (rendered,) = await self._frontend.renderer.render_cmpl_async([asked])
        params = PoolingParams(task="token_classify", use_activation=False, step_tag_id=self._mark)
        async for output in self._frontend.encode(rendered, params, request_id):
            rows = output.outputs.data
            positions = len(output.prompt_token_ids)
        return await asyncio.to_thread(self._times, words, rows, len(sound) / _RATE), positions

    def _times(self, words: list[str], rows: torch.Tensor, seconds: float) -> Alignment:
        """`rows` (2n, classes): how likely which time is, for the beginning and the end of each word."""
        marks = torch.full((1, 2 * len(words)), self._mark)
        (found,) = self._processor.decode_forced_alignment(rows[None], marks, [words], self._mark, self._step_ms)
        return Alignment(
            [Word(part["text"], min(part["start_time"], seconds), min(part["end_time"], seconds)) for part in found]
        )


def _language(named: str) -> str | None:
    """The language by the name that the model's words are split by; None: nobody said which it is.

    Raises:
        EngineError: 400, it is none of the model's.
    """
    if named.lower() in _NO_LANGUAGE:
        return None
    known = ", ".join(sorted(processing.FORCED_ALIGNER_LANGUAGES))
    try:
        name = resolve_language(named, processing.LANGUAGE_CODE_TO_NAME, return_code=False)
    except ValueError:
        name = named
    if name not in processing.FORCED_ALIGNER_LANGUAGES:
        message = f"language: the forced aligner does not know {named}; it knows {known}. Leave out word_timestamps."
        raise bad_request(message, param="language", code="invalid_value")
    if (package := _missing_package(name)) is not None:
        message = (
            f"language: to find the words of {name} takes the Python package {package}, which is not installed here"
        )
        raise bad_request(message, param="language", code="unsupported_parameter")
    return str(name)


def _missing_package(language: str) -> str | None:
    """What transformers splits the words of a language with, if that is not here."""
    if language == "Japanese" and not processing.is_nagisa_available():
        return "nagisa"
    if language == "Korean" and not processing.is_soynlp_available():
        return "soynlp"
    return None


def _as_wav(samples: bytes, rate: int) -> bytes:
    target = BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples)
    return target.getvalue()


def _refused(error: EngineError) -> EngineError:
    """Too long a sound is no fault of the context's but of what was asked of it."""
    failed = error.failed
    if failed.code != "context_length_exceeded":
        return error
    message = f"sound and text together are too long to be aligned: {failed.message}"
    return EngineError(msgspec.structs.replace(failed, message=message))
