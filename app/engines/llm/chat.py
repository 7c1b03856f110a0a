"""vLLM's chat serving class, stopped at the point where it has prepared everything and would start to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

Json = dict[str, Any]


class PreparedChat(msgspec.Struct):
    """A chat request ready to run, with vLLM's two ways to answer it and the prompt's media token counts."""

    stream: AsyncIterator[str] | None = None
    respond: Callable[[], Awaitable[Any]] | None = None
    media_tokens: dict[str, int] = {}


class ChatServing(OpenAIServingChat):  # type: ignore[misc]
    """Its `create_chat_completion` returns a PreparedChat (or vLLM's ErrorResponse)."""

    def chat_completion_stream_generator(self, *args: Any, **options: Any) -> PreparedChat:
        """vLLM's hook for a streamed answer."""
        stream = super().chat_completion_stream_generator(*args, **options)
        return PreparedChat(stream=stream, media_tokens=options.get("mm_token_counts") or {})

    async def chat_completion_full_generator(self, *args: Any, **options: Any) -> PreparedChat:
        """vLLM's hook for a whole answer."""
        respond = partial(super().chat_completion_full_generator, *args, **options)
        return PreparedChat(respond=respond, media_tokens=options.get("mm_token_counts") or {})

    def is_plain(self, request: ChatCompletionRequest) -> bool:
        """Whether the answer is text and counts only, so that vLLM's response objects can be left out."""
        return not (
            self._parses(request)
            or request.logprobs
            or request.echo
            or request.return_token_ids
            or request.return_prompt_text
            or request.prompt_logprobs is not None
            or request.use_beam_search
            or request.kv_transfer_params
            or request.ec_transfer_params
            or self.enable_per_request_metrics
            or self.enable_log_outputs
        )

    def _parses(self, request: ChatCompletionRequest) -> bool:
        """Whether a parser may change the text: most tool parsers leave it alone when no tool may be called."""
        parser = self.parser_cls
        if parser is None:
            return False
        tool_parser = parser.tool_parser_cls
        idle = tool_parser is not None and not tool_parser.engine_based_streaming and request.tool_choice == "none"
        return parser.reasoning_parser_cls is not None or not idle

    def usage_details(self, cached: int | None, created: int | None, media: dict[str, int]) -> Json:
        """What vLLM would add to `usage`."""
        if not self.enable_prompt_tokens_details:
            return {}
        counts = {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": media or None}
        present = {name: count for name, count in counts.items() if count is not None}
        return {"prompt_tokens_details": present} if present else {}
