"""From a request that a replica shall answer to its response: accepted first, ended well whatever happens."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response

from app.protocol.errors import ErrorBody
from app.routes.deadline import time_limit
from app.routes.errors import ClientGoneError, shutting_down
from app.routes.interrupt import Interrupt, disconnected
from app.routes.sse import EventStream
from app.routes.state import draining, orchestrator, settings, stopping
from app.routes.trace import trace_of

if TYPE_CHECKING:
    from app.pipeline.request import RequestStream


class Submission(msgspec.Struct, frozen=True):
    """What a replica is asked. `model` is the name that the client used, "" for none.

    `task` is what a model has to be able to do, where that is not `kind` itself; `instance` names the one engine that
    can answer, "" for any.
    """

    kind: str
    body: bytes
    model: str = ""
    task: str = ""
    instance: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """How an answer is written: as a whole (JSON, or a response), in frames, and as the end of a stream that failed."""

    whole: Callable[[RequestStream], Awaitable[bytes | Response[Any]]]
    frames: Callable[[RequestStream], AsyncIterator[bytes]]
    ending: Callable[[ErrorBody], bytes]


def refuse_while_stopping(request: Request[Any, Any, Any]) -> None:
    """
    Raises:
        ApiError: 503, the server stops and begins nothing new.
    """
    if stopping(request.app).is_set():
        raise shutting_down()


async def respond(
    request: Request[Any, Any, Any], submission: Submission, delivery: Delivery, *, stream: bool
) -> Response[Any]:
    """The response, once a replica has accepted the submission; nothing is sent before.

    Raises:
        ApiError: whatever the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    async with AsyncExitStack() as cleanup:
        client = Interrupt(disconnected(request.receive))
        cleanup.push_async_callback(client.close)
        drain = Interrupt(draining(request.app).wait())
        cleanup.push_async_callback(drain.close)
        with client.raising(ClientGoneError()), drain.raising(shutting_down()):
            answer = await _submit(request, submission, stream)
            cleanup.push_async_callback(_close, answer, request)
            if not stream:
                content = await delivery.whole(answer)
                return Response(content, media_type="application/json") if isinstance(content, bytes) else content
        return EventStream(
            delivery.frames(answer),
            client,
            cleanup.pop_all().aclose,
            ending=delivery.ending,
            drain=drain,
            keep_alive_s=settings(request.app).server.sse_keep_alive_s,
        )


async def _submit(request: Request[Any, Any, Any], submission: Submission, stream: bool) -> RequestStream:
    return await orchestrator(request.app).submit(
        submission.kind,
        _unique(request),
        submission.body,
        model=submission.model,
        task=submission.task,
        instance=submission.instance,
        limit_s=time_limit(request),
        streamed=stream,
    )


async def _close(answer: RequestStream, request: Request[Any, Any, Any]) -> None:
    if draining(request.app).is_set():
        await answer.aclose("shutdown")
    else:
        await answer.aclose("failed" if trace_of(request.scope).outcome == "failed" else "client_disconnect")


def _unique(request: Request[Any, Any, Any]) -> str:
    """Clients choose X-Request-Id and may use one twice at a time; replicas must never see that."""
    return f"{trace_of(request.scope).request_id}-{os.urandom(4).hex()}"
