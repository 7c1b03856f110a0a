"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API; and conversations in batches, vLLM's."""

from __future__ import annotations

from litestar.openapi.spec import OpenAPIType

from app.routes.openapi import Body
from app.routes.relay import relayed

_MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
_FIELDS: dict[str, OpenAPIType] = {"messages": OpenAPIType.ARRAY}

create_message = relayed(
    "/v1/messages",
    "messages",
    summary="Answer a conversation (Anthropic's form)",
    body=Body(
        "messages",
        ("model", "messages", "max_tokens"),
        {**_FIELDS, "max_tokens": OpenAPIType.INTEGER, "stream": OpenAPIType.BOOLEAN},
        {"model": "demo", "max_tokens": 64, "messages": _MESSAGES},
    ),
)
count_tokens = relayed(
    "/v1/messages/count_tokens",
    "count_tokens",
    summary="The tokens of a conversation (Anthropic's form)",
    body=Body("messages", ("model", "messages"), {**_FIELDS}, {"model": "demo", "messages": _MESSAGES}),
)
create_chat_batch = relayed(
    "/v1/chat/completions/batch",
    "chat_batch",
    summary="Answer several conversations, one choice each",
    body=Body("generation", ("messages",), {**_FIELDS}, {"messages": [_MESSAGES, _MESSAGES]}),
)
