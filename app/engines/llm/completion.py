"""vLLM's completion serving class, stopped where it would turn outputs into response objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.outputs import RequestOutput

Json = dict[str, Any]


class PreparedStream(msgspec.Struct):
    """A streamed completion ready to run, with vLLM's way to answer it."""

    stream: AsyncIterator[str]


class WholeText(msgspec.Struct):
    """A plain completion that has run: one output a prompt."""

    outputs: list[RequestOutput]


class CompletionServing(OpenAIServingCompletion):  # type: ignore[misc]
    """Its `create_completion` returns PreparedStream, WholeText, or vLLM's own response or ErrorResponse."""

    def completion_stream_generator(self, *args: Any, **options: Any) -> PreparedStream:
        """vLLM's hook for a streamed answer."""
        return PreparedStream(super().completion_stream_generator(*args, **options))

    def request_output_to_completion_response(
        self, final_res_batch: list[RequestOutput], request: CompletionRequest, *args: Any
    ) -> Any:
        """vLLM's hook for a whole answer, called when every prompt is done."""
        if self.is_plain(request):
            return WholeText(final_res_batch)
        return super().request_output_to_completion_response(final_res_batch, request, *args)

    def is_plain(self, request: CompletionRequest) -> bool:
        """Whether the answer is text and counts only, so that vLLM's response objects can be left out."""
        return not (
            request.logprobs is not None
            or request.echo
            or request.return_token_ids
            or request.prompt_logprobs is not None
            or request.use_beam_search
            or request.kv_transfer_params
            or request.ec_transfer_params
            or self.enable_per_request_metrics
            or (self.enable_prompt_tokens_details and _is_list_of_prompts(request.prompt))
        )

    def usage_details(self, cached: int | None) -> Json:
        """What vLLM would add to `usage`."""
        if not self.enable_prompt_tokens_details or cached is None:
            return {}
        return {"prompt_tokens_details": {"cached_tokens": cached}}


def _is_list_of_prompts(prompt: Any) -> bool:
    """vLLM reports the cached tokens of one of several prompts; its full path decides which."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
