"""POST /v1/responses; GET and cancel for responses that a replica holds, from whichever API worker is asked."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.spec import OpenAPIType
from litestar.params import FromPath

from app.protocol.decoding import invalid_field
from app.protocol.responses import instance_of, unknown_response
from app.routes.body import json_body, read_body
from app.routes.openapi import ERRORS, Body, operation
from app.routes.relay import DELIVERY, decode
from app.routes.state import orchestrator
from app.routes.submission import Submission, refuse_while_stopping, respond

TASK = "responses"

_BODY = Body(
    "responses",
    ("input",),
    {
        "instructions": OpenAPIType.STRING,
        "max_output_tokens": OpenAPIType.INTEGER,
        "stream": OpenAPIType.BOOLEAN,
        "background": OpenAPIType.BOOLEAN,
        "store": OpenAPIType.BOOLEAN,
        "previous_response_id": OpenAPIType.STRING,
    },
    {"input": "What is the capital of France?"},
)


class _Query(msgspec.Struct):
    stream: bool = False
    starting_after: int | None = None


@post(
    "/v1/responses",
    status_code=200,
    operation_class=operation(_BODY),
    operation_id="createResponse",
    responses=ERRORS,
    raises=[],
    tags=["responses"],
    summary="Answer an input",
)
async def create_response(request: Request[Any, Any, Any]) -> Response[Any]:
    """One response object, or a stream of named events with `"stream": true`."""
    refuse_while_stopping(request)
    body = await json_body(request)
    asked = decode(request, body)
    instance = ""
    if asked.previous_response_id is not None:
        instance = _holder(request, asked.previous_response_id, "previous_response_id")
    submission = Submission(TASK, body, asked.model or "", instance=instance)
    return await respond(request, submission, DELIVERY, stream=bool(asked.stream))


@get(
    "/v1/responses/{response_id:str}",
    operation_id="retrieveResponse",
    responses=ERRORS,
    raises=[],
    tags=["responses"],
    summary="A stored response",
)
async def retrieve_response(request: Request[Any, Any, Any], response_id: FromPath[str]) -> Response[Any]:
    """The response as far as it is; with `stream=true` the events of one that runs in the background."""
    try:
        query = msgspec.convert(dict(request.query_params), _Query, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from None
    reference = {"response_id": response_id, "stream": query.stream, "starting_after": query.starting_after}
    return await _ask_holder(request, "retrieve_response", response_id, reference, stream=query.stream)


@post(
    "/v1/responses/{response_id:str}/cancel",
    status_code=200,
    operation_id="cancelResponse",
    responses=ERRORS,
    raises=[],
    tags=["responses"],
    summary="Stop a response that runs in the background",
)
async def cancel_response(request: Request[Any, Any, Any], response_id: FromPath[str]) -> Response[Any]:
    """The response, whose status is now "cancelled". A body is not needed and not read."""
    return await _ask_holder(request, "cancel_response", response_id, {"response_id": response_id}, stream=False)


async def _ask_holder(
    request: Request[Any, Any, Any], kind: str, response_id: str, reference: dict[str, Any], *, stream: bool
) -> Response[Any]:
    refuse_while_stopping(request)
    instance = _holder(request, response_id, "response_id")
    await read_body(request)  # so that what the client sends next can only be its leaving
    submission = Submission(kind, msgspec.json.encode(reference), task=TASK, instance=instance)
    return await respond(request, submission, DELIVERY, stream=stream)


def _holder(request: Request[Any, Any, Any], response_id: str, param: str) -> str:
    """The engine that holds a response.

    Raises:
        ApiError: 404, none does.
    """
    instance = instance_of(response_id, param)
    if not orchestrator(request.app).holds(TASK, instance):
        raise unknown_response(response_id, param)
    return instance
