"""From vLLM's answers to our events: straight from its outputs (plain text), or from its response objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from app.cluster.messages import AnyEvent, Chunk, Delta, Extra, Failed, Finish, Usage
from app.engines.base import EngineError
from app.engines.llm.errors import refusal_of

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput

Emit = Callable[[AnyEvent], None]
Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_FRAMING = frozenset({"id", "object", "created", "model", "choices", "usage", "service_tier"})
_CHOICE_FRAMING = frozenset({"index", "finish_reason", "stop_reason"})


class TextSink:
    """Fast path: the outputs of plain-text generations become Delta and Finish, and at the end Usage.

    `continuous` adds a Usage before every Delta.
    """

    def __init__(self, emit: Emit, *, continuous: bool = False) -> None:
        self._emit = emit
        self._continuous = continuous
        self._prompt_tokens: dict[int, int] = {}
        self._completion_tokens = 0
        self.cached_tokens: int | None = None
        self.created_cache_tokens: int | None = None

    def take(self, offset: int, output: RequestOutput) -> None:
        """One output; its choices are numbered from `offset` (several prompts share one answer).

        Raises:
            EngineError: vLLM gave the request up.
        """
        if offset not in self._prompt_tokens:
            self._begin(offset, output)
        for part in output.outputs:
            self._take_part(offset + part.index, part)

    def _begin(self, offset: int, output: RequestOutput) -> None:
        encoder = output.encoder_prompt_token_ids
        self._prompt_tokens[offset] = len(output.prompt_token_ids) + (len(encoder) if encoder else 0)
        self.cached_tokens = output.num_cached_tokens
        self.created_cache_tokens = output.num_cache_creation_tokens

    def _take_part(self, index: int, part: CompletionOutput) -> None:
        reason = part.finish_reason
        if reason == "error":
            raise EngineError(Failed(500, "the engine gave this request up; it can be sent again"))
        tokens = len(part.token_ids)
        self._completion_tokens += tokens
        if self._continuous:
            self._emit(self.usage())
        if tokens or part.text:
            self._emit(Delta(index, part.text, tokens))
        if reason is not None:
            self._emit(Finish(index, reason, b"null" if part.stop_reason is None else _encode(part.stop_reason)))

    def usage(self, details: Json | None = None) -> Usage:
        """The counts so far."""
        return Usage(sum(self._prompt_tokens.values()), self._completion_tokens, _encode(details) if details else b"")


class ResponseReader:
    """Full path: vLLM's chunks and responses become Chunk, Finish, Usage and Extra."""

    def __init__(self, emit: Emit, *, prompt: str) -> None:
        self._emit = emit
        self._prompt = prompt
        self._completion_tokens: dict[int, int] = {}

    def take_event(self, text: str) -> None:
        """One server-sent event of a stream of vLLM's ("data: {...}"); its [DONE] says nothing new.

        Raises:
            EngineError: the event is an error.
        """
        data = text.removeprefix("data: ").strip()
        if data == "[DONE]":
            return
        chunk: Json = msgspec.json.decode(data)
        if "error" in chunk:
            raise refusal_of(chunk["error"], prompt=self._prompt)
        self._take_stream_usage(chunk)
        self._take_extra(chunk)
        for choice in chunk["choices"]:
            _strip_role(choice)
            self._take_choice(choice)

    def take_response(self, response: Json) -> None:
        """A whole answer, as the JSON object of vLLM's response without its nulls."""
        self._take_extra(response)
        for choice in response["choices"]:
            message = choice.get("message")
            if message is not None:
                message.setdefault("content", None)  # OpenAI's clients expect the key beside tool_calls
            self._take_choice(choice)
        self._emit_usage(response["usage"])

    def _take_choice(self, choice: Json) -> None:
        fields = {
            name: _dense(value) for name, value in choice.items() if name not in _CHOICE_FRAMING and value is not None
        }
        if fields and fields != {"delta": {}}:
            self._emit(Chunk(choice["index"], _encode(fields)))
        if choice.get("finish_reason") is not None:
            self._emit(Finish(choice["index"], choice["finish_reason"], _encode(choice.get("stop_reason"))))

    def _take_extra(self, answer: Json) -> None:
        extra = {name: value for name, value in answer.items() if name not in _FRAMING and value is not None}
        if extra:
            self._emit(Extra(_encode(extra)))

    def _take_stream_usage(self, chunk: Json) -> None:
        usage = chunk.get("usage")
        if usage is None:
            return
        if chunk["choices"]:  # continuous statistics count the one choice of the chunk
            self._completion_tokens[chunk["choices"][0]["index"]] = usage["completion_tokens"]
            usage = {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": sum(self._completion_tokens.values()),
            }
        self._emit_usage(usage)

    def _emit_usage(self, usage: Json) -> None:
        details = {
            name: _dense(value) for name, value in usage.items() if name.endswith("_details") and value is not None
        }
        self._emit(Usage(usage["prompt_tokens"], usage["completion_tokens"], _encode(details) if details else b""))


def _strip_role(choice: Json) -> None:
    """The role of a stream is told by the API worker, right after Accepted; vLLM's chunk for it holds empty content."""
    delta = choice.get("delta")
    if delta is not None and delta.pop("role", None) is not None and delta.get("content") == "":
        del delta["content"]


def _dense(value: Any) -> Any:
    """A nested object without its nulls at the first level ({"content": "x", "reasoning": null})."""
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if item is not None or name == "content"}
    return value
