"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from app.protocol.chat import chat_answer, chat_writer
from app.routes.audiochat import asks_for_sound, speak_in_chat
from app.routes.body import json_body
from app.routes.generation import Api, decode_generation, generate
from app.routes.openapi import ERRORS, ChatOperation
from app.routes.picturechat import asks_for_pictures, draw_in_chat, draws
from app.routes.state import orchestrator
from app.routes.submission import refuse_while_stopping

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
    refuse_while_stopping(request)
    return await chat(request, await json_body(request))


async def chat(request: Request[Any, Any, Any], body: bytes) -> Response[Any]:
    """Answer a conversation with text, with text that is spoken, or with pictures: as the model can and as is asked."""
    tasks, known = orchestrator(request.app).capabilities().tasks, orchestrator(request.app).known
    if draws(tasks) and "chat" not in tasks and known:
        return await draw_in_chat(request, body)
    asked = decode_generation(body)
    if asks_for_pictures(asked) and (draws(tasks) or not known):
        return await draw_in_chat(request, body)
    if asks_for_sound(request, asked):
        return await speak_in_chat(request, body)
    return await generate(request, API, body, asked)
