"""From a request that a replica shall answer to its response: accepted first, ended well whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar import Request, Response

from app.protocol.aligning import AlignTaskOf
from app.protocol.errors import ErrorBody
from app.routes.deadline import time_limit
from app.routes.errors import ClientGoneError, shutting_down
from app.routes.interrupt import Interrupt, disconnected
from app.routes.sse import EVENT_STREAM, EventStream, Headers
from app.routes.state import draining, orchestrator, settings, stopping
from app.routes.trace import trace_of, unique

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

T = TypeVar("T")


class Submission(msgspec.Struct, frozen=True):
    """What a replica is asked. `model` is the name that the client used, "" for none.

    `task` is what a model has to be able to do, where that is not `kind` itself; `instance` names the one engine that
    can answer, "" for any. `speech` is the task of the speech stage behind, where the answer is to be heard. `align`
    makes what the forced aligner is asked of what has been answered, where words are to be timed.
    """

    kind: str
    body: bytes
    model: str = ""
    task: str = ""
    instance: str = ""
    speech: bytes = b""
    align: AlignTaskOf | None = None


class Delivery(msgspec.Struct, frozen=True):
    """How an answer is written: as a whole (JSON, or a response), in frames, and as the end of a stream that failed.

    A stream is one of server-sent events, unless `opening` says otherwise when it has seen how the answer begins: what
    comes then is a file, whose failure breaks the connection.
    """

    whole: Callable[[AnswerStream], Awaitable[bytes | Response[Any]]]
    frames: Callable[[AnswerStream], AsyncIterator[bytes]]
    ending: Callable[[ErrorBody], bytes] | None = None
    opening: Callable[[AnswerStream], Awaitable[Headers]] | None = None


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
        client, drain = _interrupts(request, cleanup)
        with client.raising(ClientGoneError()), drain.raising(shutting_down()):
            answer = await _submit(request, submission, streamed=stream, whole=not stream)
            cleanup.push_async_callback(_close, answer, request)
            if not stream:
                content = await delivery.whole(answer)
                return Response(content, media_type="application/json") if isinstance(content, bytes) else content
            headers = EVENT_STREAM if delivery.opening is None else await delivery.opening(answer)
        return EventStream(
            delivery.frames(answer),
            client,
            cleanup.pop_all().aclose,
            ending=delivery.ending,
            drain=drain,
            headers=headers,
            keep_alive_s=0 if delivery.opening else settings(request.app).server.sse_keep_alive_s,
        )


async def attended(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, for a response that is sent when it is there: work for nobody is cancelled.

    Raises:
        ApiError: 503, the server has no more time; and what `work` raises.
        ClientGoneError: the client left.
    """
    async with AsyncExitStack() as cleanup:
        client, drain = _interrupts(request, cleanup)
        with client.raising(ClientGoneError()), drain.raising(shutting_down()):
            return await work


def _interrupts(request: Request[Any, Any, Any], cleanup: AsyncExitStack) -> tuple[Interrupt, Interrupt]:
    """What ends the work for a response early, until `cleanup`: the client leaves, the server has no more time."""
    client = Interrupt(disconnected(request.receive))
    cleanup.push_async_callback(client.close)
    drain = Interrupt(draining(request.app).wait())
    cleanup.push_async_callback(drain.close)
    return client, drain


async def answered(
    request: Request[Any, Any, Any], submission: Submission, use: Callable[[AnswerStream], Awaitable[T]]
) -> T:
    """What `use` makes of the whole answer to one of the submissions that a request consists of; to be `attended`.

    Raises:
        ApiError: whatever the replica refuses.
    """
    answer = await _submit(request, submission, streamed=False, whole=True)
    try:
        return await use(answer)
    finally:
        await _close(answer, request)


async def submit(request: Request[Any, Any, Any], submission: Submission) -> AnswerStream:
    """The answer to a submission that nobody waits for, as it comes; to be closed.

    Raises:
        ApiError: whatever the replica refuses.
    """
    return await _submit(request, submission, streamed=False, whole=False)


async def _submit(
    request: Request[Any, Any, Any], submission: Submission, *, streamed: bool, whole: bool
) -> AnswerStream:
    """To the one stage that answers it, or to those that do so together."""
    stages, kind, body, model = orchestrator(request.app), submission.kind, submission.body, submission.model
    request_id, limit_s = unique(trace_of(request.scope).request_id), time_limit(request)
    if submission.speech:
        return await stages.speak(request_id, body, submission.speech, model=model, limit_s=limit_s, streamed=streamed)
    if submission.align is not None:
        return await stages.align(kind, request_id, body, submission.align, model=model, limit_s=limit_s)
    if stages.expands(kind):
        return await stages.expand(kind, request_id, body, model=model, limit_s=limit_s, streamed=streamed)
    return await stages.submit(
        kind,
        request_id,
        body,
        model=model,
        task=submission.task,
        instance=submission.instance,
        limit_s=limit_s,
        streamed=streamed,
        whole=whole,
    )


async def _close(answer: AnswerStream, request: Request[Any, Any, Any]) -> None:
    if draining(request.app).is_set():
        await answer.aclose("shutdown")
    else:
        await answer.aclose("failed" if trace_of(request.scope).outcome == "failed" else "client_disconnect")
