"""The table of what vLLM serves beside chat and completions: request class, serving object, and how it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.generate.generative_scoring.serving import GenerativeScoringRequest
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import CohereEmbedRequest, EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest

from app.engines.llm.bodies import WITHOUT_EFFECT, Rule, only
from app.engines.llm.schema import Schema

Answer = Any
"""A response object of vLLM's (pydantic), its ErrorResponse, a Starlette response, or an iterator of stream events."""


def _never(_parsed: Any) -> bool:
    return False


class Task(msgspec.Struct, frozen=True):
    """One task: `answer` is called with the parsed body.

    `nulls`: the answer's null members are written. `names`: vLLM's word for a field, where it is not the client's.
    `detached` tells of a parsed request that its work goes on after the answer.
    """

    schema: Schema
    answer: Callable[[Any], Awaitable[Answer]]
    nulls: bool = True
    names: dict[str, str] = {}
    detached: Callable[[Any], bool] = _never


_JSON_ONLY: dict[str, Rule] = {
    "encoding_format": only("float", "base64", reason="answers are JSON here: float or base64"),
}
_IDS: dict[str, Rule] = {"request_id": only(reason="the server chooses the ids of requests")}
_ANTHROPIC = frozenset({"service_tier", "cache_control", "inference_geo"})
_BATCH: dict[str, Rule] = _IDS | {
    "stream": only(False, reason="a batch is answered as a whole"),
    "tools": only([], reason="a batch cannot use tools"),
}


def generation_tasks(state: SimpleNamespace) -> dict[str, Task]:
    """The tasks of a model that generates text, beside those with state of their own."""
    messages, batch = state.anthropic_serving_messages, state.openai_serving_chat_batch
    return {
        "messages": Task(
            Schema(AnthropicMessagesRequest, prompt="messages", ignored=_ANTHROPIC),
            messages.create_messages,
            nulls=False,
            names={"stop": "stop_sequences", "max_completion_tokens": "max_tokens"},
        ),
        "count_tokens": Task(
            Schema(AnthropicCountTokensRequest, prompt="messages", ignored=_ANTHROPIC),
            messages.count_tokens,
            nulls=False,
        ),
        "chat_batch": Task(
            Schema(BatchChatCompletionRequest, prompt="messages", refused=_BATCH, ignored=WITHOUT_EFFECT),
            batch.create_batch_chat_completion,
        ),
        "generative_scoring": Task(
            Schema(GenerativeScoringRequest, prompt="items"),
            state.serving_generative_scoring.create_generative_scoring,
        ),
    }


def token_tasks(state: SimpleNamespace) -> dict[str, Task]:
    """What every model with a tokenizer can do."""
    tokenization = state.serving_tokenization

    async def tokenize(parsed: Any) -> Answer:
        return await tokenization.create_tokenize(parsed, None)

    async def detokenize(parsed: Any) -> Answer:
        return await tokenization.create_detokenize(parsed, None)

    return {
        "tokenize": Task(Schema(TokenizeCompletionRequest | TokenizeChatRequest, prompt="prompt"), tokenize),
        "detokenize": Task(Schema(DetokenizeRequest, prompt="tokens"), detokenize),
    }


def pooling_tasks(state: SimpleNamespace) -> dict[str, Task]:
    """The tasks of a model that pools: those for which vLLM has built a serving object."""
    found: dict[str, Task] = {}

    def add(name: str, serving: str, kind: Any, prompt: str, refused: dict[str, Rule] | None = None) -> None:
        if (handler := getattr(state, serving, None)) is not None:
            schema = Schema(kind, prompt=prompt, refused=_IDS | (refused or {}), ignored=frozenset({"user"}))
            found[name] = Task(schema, handler)

    add("embeddings", "serving_embedding", EmbeddingRequest, "input", _JSON_ONLY)
    add("cohere_embed", "serving_embedding", CohereEmbedRequest, "texts")
    add("pooling", "serving_pooling", PoolingRequest, "input", _JSON_ONLY)
    add("classify", "serving_classification", ClassificationRequest, "input")
    add("score", "serving_scores", ScoreRequest, "queries")
    add("rerank", "serving_scores", RerankRequest, "documents")
    return found
