"""What the two text generation routes share: from the request to a whole answer or a stream."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response

from app.protocol.answer import Answer
from app.protocol.chunks import ChunkWriter
from app.protocol.decoding import BodyDecoder
from app.protocol.errors import ApiError
from app.protocol.generation import GenerationRequest, Identity, UsageMode
from app.protocol.models import served_name
from app.protocol.sse import DONE
from app.routes.body import json_body
from app.routes.errors import ClientGoneError
from app.routes.interrupt import Interrupt, disconnected
from app.routes.sse import EventStream
from app.routes.state import draining, orchestrator, settings
from app.routes.trace import Outcome, Trace, trace_of
from app.telemetry.requests import EndReason

if TYPE_CHECKING:
    from app.pipeline.request import RequestStream

_decoder = BodyDecoder(GenerationRequest)
_REASONS: dict[Outcome | None, EndReason] = {"draining": "shutdown", "failed": "failed"}
"""Why a request is given up before its end; for every other outcome because the client has left."""


class Api(msgspec.Struct, frozen=True):
    """One OpenAI API: the task that replicas know it by, the prefix of its ids, and how its answers are written."""

    task: str
    id_prefix: str
    writer: Callable[[Identity, UsageMode], ChunkWriter]
    answer: Callable[[Identity], Answer]


async def generate(request: Request[Any, Any, Any], api: Api) -> Response[Any]:
    """Answer one request. Nothing is sent before a replica has accepted it.

    Raises:
        ApiError: whatever the worker or the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    if draining(request.app).is_set():
        raise ApiError(503, "The server is shutting down.", code="shutting_down")
    body = await json_body(request)
    asked = _decoder.decode(body)
    model = served_name(settings(request.app), asked.model)
    identity = Identity(api.id_prefix + trace_of(request.scope).request_id, int(time.time()), model)
    return await _answer(request, api, asked, body, identity)


async def _answer(
    request: Request[Any, Any, Any], api: Api, asked: GenerationRequest, body: bytes, identity: Identity
) -> Response[Any]:
    server = settings(request.app).server
    async with AsyncExitStack() as cleanup:
        client = Interrupt(disconnected(request.receive))
        cleanup.push_async_callback(client.close)
        with client.raising(ClientGoneError()):
            stream = await orchestrator(request.app).submit(
                api.task,
                _unique(request),
                body,
                model=asked.model or "",
                limit_s=server.request_timeout_s,
                streamed=bool(asked.stream),
            )
            cleanup.push_async_callback(_close, stream, trace_of(request.scope))
            if not asked.stream:
                return await _whole(stream, api.answer(identity))
        return EventStream(
            _frames(stream, api.writer(identity, asked.usage_mode), asked.n or 1),
            client,
            cleanup.pop_all().aclose,
            draining=draining(request.app),
            keep_alive_s=server.sse_keep_alive_s,
        )


async def _close(stream: RequestStream, trace: Trace) -> None:
    await stream.aclose(_REASONS.get(trace.outcome, "client_disconnect"))


async def _whole(stream: RequestStream, answer: Answer) -> Response[bytes]:
    async for events in stream:
        answer.add(events)
    return Response(answer.encode(), media_type="application/json")


async def _frames(stream: RequestStream, writer: ChunkWriter, choices: int) -> AsyncIterator[bytes]:
    if opening := writer.open(choices):
        yield opening
    async for events in stream:
        if frame := writer.write(events):
            yield frame
    yield writer.close() + DONE


def _unique(request: Request[Any, Any, Any]) -> str:
    """Clients choose X-Request-Id and may use one twice at a time; replicas must never see that."""
    return f"{trace_of(request.scope).request_id}-{os.urandom(4).hex()}"
