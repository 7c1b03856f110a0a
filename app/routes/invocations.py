"""POST /invocations and GET /load: what SageMaker and load balancers of vLLM ask for."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.spec import OpenAPIType

from app.pipeline.graph import unavailable
from app.protocol.decoding import BodyDecoder
from app.protocol.errors import ApiError
from app.routes import chat, completions, images
from app.routes.body import json_body
from app.routes.generation import generate
from app.routes.openapi import ERRORS, Body, operation
from app.routes.relay import relay
from app.routes.state import orchestrator

_decoder = BodyDecoder(dict[str, msgspec.Raw])

_TASKS = (
    ("chat", {"messages"}),
    ("completion", {"prompt"}),
    ("image", {"messages"}),
    ("image", {"prompt"}),
    ("embeddings", {"input"}),
    ("embeddings", {"messages"}),
    ("classify", {"input"}),
    ("classify", {"messages"}),
    ("rerank", {"query", "documents"}),
    ("score", {"queries", "documents"}),
    ("score", {"queries", "items"}),
    ("score", {"data_1", "data_2"}),
    ("score", {"text_1", "text_2"}),
    ("pooling", {"input"}),
    ("pooling", {"messages"}),
)
"""Which fields make a body one of a task; the first task counts that the served model can do (vLLM's order)."""

_BODY = Body("generation", (), {"messages": OpenAPIType.ARRAY, "prompt": OpenAPIType.STRING}, {"prompt": "Hello"})


class ServerLoad(msgspec.Struct):
    """The body of /load: requests that the replicas hold, running or waiting."""

    server_load: int


@post(
    "/invocations",
    status_code=200,
    operation_class=operation(_BODY),
    operation_id="invoke",
    responses=ERRORS,
    raises=[],
    tags=["generation"],
    summary="Whatever the body asks for, for SageMaker",
)
async def invoke(request: Request[Any, Any, Any]) -> Response[Any]:
    """As the route of the first task of the served model whose fields the body has."""
    body = await json_body(request)
    fields = _decoder.decode(body)
    match _task(request, fields):
        case "chat" | "image" if "messages" in fields:
            return await chat.chat(request, body)
        case "image":
            return await images.draw(request, body)
        case "completion":
            return await generate(request, completions.API, body)
        case task:
            return await relay(request, task, body)


@get("/load", tags=["health"], summary="How much the server has to do")
async def server_load(request: Request[Any, Any, Any]) -> ServerLoad:
    """As the replicas reported it last, at most a second ago."""
    loads = [replica.load for stage in orchestrator(request.app).status() for replica in stage.replicas]
    return ServerLoad(sum(load.running + load.waiting for load in loads))


def _task(request: Request[Any, Any, Any], fields: dict[str, msgspec.Raw]) -> str:
    stages = orchestrator(request.app)
    able = stages.capabilities().tasks
    candidates = [(task, needed) for task, needed in _TASKS if task in able]
    for task, needed in candidates:
        if needed <= fields.keys():
            return task
    if not stages.known:
        raise unavailable([stage.name for stage in stages.status() if not stage.ready])
    expected = "; ".join(" and ".join(sorted(needed)) for _, needed in candidates)
    raise ApiError(400, f"The body fits no task of the served model; it takes: {expected}.", code="invalid_value")
