"""Answers requests with vLLM's OpenAI serving classes, without FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from app.cluster.messages import Accepted, Done, Extra
from app.engines.base import EngineError, Request
from app.engines.llm import bodies
from app.engines.llm.blame import blamed
from app.engines.llm.chat import ChatServing, PreparedChat
from app.engines.llm.completion import CompletionServing, PreparedStream, WholeText
from app.engines.llm.errors import bad_request, engine_dead, raise_if_error, refusal
from app.engines.llm.events import Json, ResponseReader, TextSink
from app.engines.llm.frontend import Batch, Frontend
from app.engines.llm.media import locate
from app.engines.omni.thinker import Handover, Thinker
from app.media.errors import MediaError

_CLIENT_NAMES = {"max_tokens": "max_completion_tokens"}


class Serving:
    """The generation routes of one engine, on events in place of HTTP; `state` is vLLM's application state."""

    def __init__(self, frontend: Frontend, state: SimpleNamespace, thinker: Thinker | None = None) -> None:
        self._frontend = frontend
        self._thinker = thinker
        # vLLM has just built these objects with two dozen settings each; ours differ in methods only.
        self._chat: ChatServing = state.openai_serving_chat
        self._chat.__class__ = ChatServing
        self._completion: CompletionServing = state.openai_serving_completion
        self._completion.__class__ = CompletionServing

    # ------------------------------------------------------------------------------------------------ generation

    async def answer(self, request: Request) -> None:
        """Serve a "chat" or "completion" request to its end.

        Raises:
            EngineError: the request is refused or failed.
        """
        if request.wants_tensors:
            await self._answer_and_hand_over(request)
        else:
            await self._answer(request)
        request.emit(Done())

    async def _answer_and_hand_over(self, request: Request) -> None:
        if self._thinker is None or request.kind != "chat":
            raise bad_request("this stage hands nothing on that could be spoken: only chats of a thinker are")
        with self._thinker.handover(request) as handover:
            try:
                await self._answer(request, handover)
            except EngineError as error:
                raise handover.error or error from error
            await handover.complete()

    async def _answer(self, request: Request, handover: Handover | None = None) -> None:
        prompt = "messages" if request.kind == "chat" else "prompt"

        def accept() -> None:
            request.emit(Accepted())
            if handover is not None:
                handover.accept()

        batch = Batch(self._frontend, accept, handover)
        try:
            with batch:
                await (self._answer_chat if request.kind == "chat" else self._answer_completion)(request, batch)
        except MediaError as error:
            raise error.at(locate(request.body, error.source) or prompt) from error
        except Exception as error:
            if self._frontend.errored:
                raise engine_dead() from error
            failed = refusal(error, prompt=prompt).failed
            raise EngineError(blamed(failed, request.body, prompt=prompt, names=_CLIENT_NAMES)) from error
        finally:
            await batch.close()

    async def _answer_chat(self, request: Request, batch: Batch) -> None:
        parsed = bodies.parse(request.body, ChatCompletionRequest, prompt="messages")
        if batch.watcher is not None and (parsed.n not in (None, 1) or parsed.use_beam_search):
            raise bad_request("one answer can be spoken: n must be 1, without beam search", param="n")
        continuous = _count_tokens(parsed)
        prepared = await self._chat.create_chat_completion(parsed)
        raise_if_error(prepared, prompt="messages")
        await batch.admit()
        if self._chat.is_plain(parsed):
            await self._feed_chat(request, batch, prepared, continuous)
        elif prepared.stream is not None:
            await _relay(prepared.stream, request, "messages")
        else:
            response = await prepared.respond()
            check_cancelled()
            self._take_response(request, response, "messages")

    async def _feed_chat(self, request: Request, batch: Batch, prepared: PreparedChat, continuous: bool) -> None:
        sink = TextSink(request.emit, continuous=continuous)
        (generation,) = batch.generations
        await generation.feed(partial(sink.take, 0))
        details = self._chat.usage_details(sink.cached_tokens, sink.created_cache_tokens, prepared.media_tokens)
        self._end_text(request, sink, details, self._chat.system_fingerprint)

    async def _answer_completion(self, request: Request, batch: Batch) -> None:
        parsed = bodies.parse(request.body, CompletionRequest, prompt="prompt")
        continuous = _count_tokens(parsed)
        answer = await self._completion.create_completion(parsed)  # without stream this runs to the end
        check_cancelled()
        raise_if_error(answer, prompt="prompt")
        if isinstance(answer, PreparedStream):
            await batch.admit()
            if self._completion.is_plain(parsed):
                await self._feed_completion(request, batch, parsed.n, continuous)
            else:
                await _relay(answer.stream, request, "prompt")
        elif isinstance(answer, WholeText):
            sink = TextSink(request.emit)
            for position, output in enumerate(answer.outputs):
                sink.take(position * parsed.n, output)
            self._end_completion(request, sink)
        else:
            self._take_response(request, answer, "prompt")

    async def _feed_completion(self, request: Request, batch: Batch, choices: int, continuous: bool) -> None:
        sink = TextSink(request.emit, continuous=continuous)
        try:
            async with asyncio.TaskGroup() as group:
                for position, generation in enumerate(batch.generations):
                    group.create_task(generation.feed(partial(sink.take, position * choices)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        self._end_completion(request, sink)

    def _end_completion(self, request: Request, sink: TextSink) -> None:
        details = self._completion.usage_details(sink.cached_tokens)
        self._end_text(request, sink, details, self._completion.system_fingerprint)

    @staticmethod
    def _end_text(request: Request, sink: TextSink, details: Json, fingerprint: str | None) -> None:
        if fingerprint is not None:
            request.emit(Extra(msgspec.json.encode({"system_fingerprint": fingerprint})))
        request.emit(sink.usage(details))

    @staticmethod
    def _take_response(request: Request, response: Any, prompt: str) -> None:
        raise_if_error(response, prompt=prompt)
        ResponseReader(request.emit, prompt=prompt).take_response(response.model_dump(mode="json", exclude_none=True))


def _count_tokens(parsed: Any) -> bool:
    """Have vLLM's streams end with usage, whoever asked for it; returns whether the client wants it in every chunk."""
    options: StreamOptions | None = parsed.stream_options
    continuous = bool(options is not None and options.continuous_usage_stats and options.include_usage)
    if parsed.stream:
        parsed.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=continuous)
    return continuous


async def _relay(stream: AsyncIterator[str], request: Request, prompt: str) -> None:
    """Read vLLM's stream as fast as the client has credit; what is not read, vLLM merges into the next chunk."""
    reader = ResponseReader(request.emit, prompt=prompt)
    async for text in stream:
        reader.take_event(text)
        await request.ready()


def check_cancelled() -> None:
    """vLLM answers a cancelled task with an error response; the cancellation has to go on.

    Raises:
        asyncio.CancelledError: the current task was cancelled meanwhile.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
