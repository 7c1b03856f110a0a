"""Answers the tasks "transcription" and "translation" of models that recognise speech."""

from __future__ import annotations

import io
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from starlette.datastructures import UploadFile
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

from app.cluster.messages import Accepted, Delta, Document, Done, Usage
from app.engines.base import EngineError, Request
from app.engines.llm.bodies import Json, Rule, only, refuse_unsupported
from app.engines.llm.errors import bad_request, engine_dead, raise_if_error, refusal, refusal_of
from app.engines.llm.frontend import Batch, Frontend
from app.engines.llm.hearing import Transcribing, Translating
from app.engines.llm.schema import Schema
from app.engines.llm.serving import check_cancelled
from app.engines.llm.whisper import EnglishWhisper
from app.media.errors import MediaError
from app.protocol.listening import ListeningTask, decode_task
from app.settings.schema import MediaConfig

_PASSED_ON = {
    "language": "language",
    "to_language": "to_language",
    "prompt": "request_prompt",
    "hotwords": "hotwords",
}
"""Fields that reach the model through its prompt, and vLLM's name for them there."""

_NAMES = {"max_tokens": "max_completion_tokens"}
"""The client's word for a field, where vLLM's errors have another."""

_BEAMS: dict[str, Rule] = {
    "n": only("1", reason="it is the number of beams: set use_beam_search to true as well"),
    "length_penalty": only("1", "1.0", reason="it weighs beams: set use_beam_search to true as well"),
    "include_stop_str_in_output": only("false", reason="it is for beams: set use_beam_search to true as well"),
}
"""Fields that vLLM reads for beam search only."""

_STREAMED: dict[str, Rule] = {
    "use_beam_search": only("false", "0", reason="which beam is best is known at the end: leave out stream"),
    "stream_continuous_usage_stats": only("false", "0", reason="the last event of a stream tells the usage"),
}


class _Kind(msgspec.Struct, frozen=True):
    """One of the two tasks."""

    schema: Schema
    serve: Callable[[bytes, Any], Awaitable[Any]]


class Listening:
    """What one engine hears: nothing, if its model does not recognise speech."""

    def __init__(self, frontend: Frontend, state: SimpleNamespace, limits: MediaConfig) -> None:
        """`state` is vLLM's application state."""
        self._frontend = frontend
        self._kinds: dict[str, _Kind] = {}
        stock = getattr(state, "openai_serving_transcription", None)
        if stock is None:
            return
        transcribing = Transcribing.beside(stock, frontend, limits)
        self._model = transcribing.model_cls
        reads = _read_by(self._model)
        refused = {
            field: only(reason="this model is not told it") for field, name in _PASSED_ON.items() if name not in reads
        }
        self._kinds["transcription"] = _Kind(_schema(TranscriptionRequest, refused), transcribing.create_transcription)
        if "task_type" in reads and self._model is not EnglishWhisper:  # else the language that is spoken comes out
            translating = Translating.beside(state.openai_serving_translation, frontend, limits)
            self._kinds["translation"] = _Kind(_schema(TranslationRequest, refused), translating.create_translation)

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return list(self._kinds)

    async def answer(self, request: Request) -> None:
        """Serve one request to its end.

        Raises:
            EngineError: the request is refused or failed.
        """
        try:
            task = decode_task(request.body)
        except msgspec.DecodeError as error:
            raise bad_request(f"the task is malformed: {error}") from error
        kind = self._kinds[request.kind]
        parsed = self._parse(task, kind.schema)
        batch = Batch(self._frontend, lambda: request.emit(Accepted()))
        try:
            with batch:
                await self._emit(await kind.serve(task.file, parsed), request, batch)
        except MediaError as error:
            raise error.at("file") from error
        except Exception as error:
            if self._frontend.errored:
                raise engine_dead() from error
            failed = refusal(error, prompt="file").failed
            param = _NAMES.get(failed.param or "", failed.param)
            raise EngineError(msgspec.structs.replace(failed, param=param)) from error
        finally:
            await batch.close()
        request.emit(_usage(batch))
        request.emit(Done())

    def _parse(self, task: ListeningTask, schema: Schema) -> Any:
        """vLLM's request for the task.

        Raises:
            EngineError: 400, with the field as `param`.
        """
        if task.answer == "verbose_json" and not self._model.supports_segment_timestamp:
            raise _unsupported_format("this model does not tell times; ask for json or text")
        if task.answer == "diarized_json" and not self._model.supports_diarized_transcription:
            raise _unsupported_format("this model does not tell speakers apart; ask for json or text")
        fields: Json = dict(task.fields)
        if task.stream:
            refuse_unsupported(fields, _STREAMED)
        ours = {"file": UploadFile(io.BytesIO()), "response_format": task.answer, "stream": task.stream}
        parsed = schema.judge(fields | ours)
        if not parsed.use_beam_search:
            refuse_unsupported(fields, _BEAMS)
        for name, value in parsed:
            if isinstance(value, float) and not math.isfinite(value):
                raise bad_request(f"{name}: must be a finite number", param=name, code="invalid_value")
        self._check_languages(parsed)
        return parsed

    def _check_languages(self, parsed: Any) -> None:
        for name in ("language", "to_language"):
            try:
                if (language := getattr(parsed, name)) is not None:
                    self._model.validate_language(language)
            except ValueError as error:
                raise bad_request(f"{name}: {error}", param=name, code="invalid_value") from error

    async def _emit(self, answer: Any, request: Request, batch: Batch) -> None:
        check_cancelled()
        raise_if_error(answer, prompt="file")
        if not hasattr(answer, "__aiter__"):
            request.emit(Document(answer.model_dump_json().encode()))
            return
        await batch.admit()
        told = 0
        async for text in _texts(answer):
            tokens = sum(part.output_tokens for part in batch.generations)
            request.emit(Delta(0, text, tokens - told))
            told = tokens
            await request.ready()


def _read_by(model: Any) -> frozenset[str]:
    """Names in the code that makes the prompt of a recording: what the model is told is among them."""
    makers = (vars(cls).get("get_generation_prompt") for cls in model.__mro__)
    return frozenset(name for maker in makers if maker is not None for name in maker.__func__.__code__.co_names)


def _schema(kind: Any, refused: dict[str, Rule]) -> Schema:
    return Schema(kind, prompt="file", refused=refused)


def _unsupported_format(reason: str) -> EngineError:
    message = f"response_format cannot be honoured: {reason}"
    return bad_request(message, param="response_format", code="unsupported_parameter")


class _Choice(msgspec.Struct):
    delta: dict[str, Any]


class _Piece(msgspec.Struct):
    """A chunk of vLLM's stream."""

    choices: list[_Choice] = []
    error: dict[str, Any] | None = None


_decode_piece = msgspec.json.Decoder(_Piece).decode


async def _texts(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """The pieces of text in a stream of vLLM's server-sent events.

    Raises:
        EngineError: the stream is broken off by an error.
    """
    async for event in stream:
        data = event.removeprefix("data: ").strip()
        if data == "[DONE]":
            return
        piece = _decode_piece(data)
        if piece.error is not None:
            raise refusal_of(piece.error, prompt="file")
        for choice in piece.choices:
            yield choice.delta.get("content") or ""


def _usage(batch: Batch) -> Usage:
    """What all clips took together. An encoder's positions are sound; without one the two are not told apart."""
    text, sound, written = (sum(getattr(part, name) for part in batch.generations) for name in _COUNTS)
    details = {"input_token_details": {"text_tokens": text, "audio_tokens": sound}} if sound else {}
    return Usage(text + sound, written, msgspec.json.encode(details) if details else b"")


_COUNTS = ("prompt_tokens", "encoder_tokens", "output_tokens")
