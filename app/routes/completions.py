"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from app.protocol.completion import completion_answer, completion_writer
from app.routes.generation import Api, generate
from app.routes.openapi import ERRORS, CompletionOperation

API = Api("completion", "cmpl-", completion_writer, completion_answer)


@post(
    "/v1/completions",
    status_code=200,
    operation_class=CompletionOperation,
    operation_id="createCompletion",
    responses=ERRORS,
    raises=[],
    tags=["generation"],
    summary="Continue a text",
)
async def create_completion(request: Request[Any, Any, Any]) -> Response[Any]:
    """One text_completion object, or a stream of them with `"stream": true`."""
    return await generate(request, API)
