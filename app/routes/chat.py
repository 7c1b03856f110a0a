"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from app.protocol.chat import chat_answer, chat_writer
from app.routes.generation import Api, generate
from app.routes.openapi import ERRORS, ChatOperation

API = Api("chat", "chatcmpl-", chat_writer, chat_answer)


@post(
    "/v1/chat/completions",
    status_code=200,
    operation_class=ChatOperation,
    operation_id="createChatCompletion",
    responses=ERRORS,
    raises=[],
    tags=["generation"],
    summary="Answer a conversation",
)
async def create_chat_completion(request: Request[Any, Any, Any]) -> Response[Any]:
    """One chat.completion object, or a stream of chat.completion.chunk events with `"stream": true`."""
    return await generate(request, API)
