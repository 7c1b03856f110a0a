"""Routes whose bodies and answers are vLLM's: the API worker passes them on and writes the framing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from app.cluster.messages import Document, Named
from app.protocol.decoding import BodyDecoder
from app.protocol.models import served_name
from app.protocol.sse import named_error_frame, named_frame
from app.routes.body import json_body
from app.routes.openapi import ERRORS, Body, operation
from app.routes.state import model_names
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream


class Asked(msgspec.Struct):
    """The fields that the API worker acts on."""

    model: str | None = None
    stream: bool | None = None
    previous_response_id: str | None = None


_decoder = BodyDecoder(Asked)


async def whole(answer: AnswerStream) -> bytes:
    """The one Document of an answer."""
    body = b""
    async for events in answer:
        for event in events:
            if isinstance(event, Document):
                body = event.body
    return body


async def frames(answer: AnswerStream) -> AsyncIterator[bytes]:
    """The Named events of an answer, framed."""
    async for events in answer:
        if frame := b"".join(named_frame(event.name, event.data) for event in events if isinstance(event, Named)):
            yield frame


DELIVERY = Delivery(whole, frames, named_error_frame)


def decode(request: Request[Any, Any, Any], body: bytes) -> Asked:
    """What the worker has to know of a body; whether the model is served is decided here.

    Raises:
        ApiError: 400, the body is no JSON object or one of the fields has the wrong type; 404, no such model.
    """
    asked = _decoder.decode(body)
    served_name(model_names(request.app), asked.model)
    return asked


async def relay(request: Request[Any, Any, Any], kind: str, body: bytes | None = None) -> Response[Any]:
    """Pass a request on to any replica that answers `kind`; `body` if it has been read already.

    Raises:
        ApiError: whatever the worker or the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    refuse_while_stopping(request)
    content = await json_body(request) if body is None else body
    asked = decode(request, content)
    submission = Submission(kind, content, asked.model or "")
    return await respond(request, submission, DELIVERY, stream=bool(asked.stream))


def relayed(paths: str | list[str], kind: str, *, summary: str, body: Body) -> HTTPRouteHandler:
    """A POST route that relays; `body` is for the OpenAPI document."""

    async def handle(request: Request[Any, Any, Any]) -> Response[Any]:
        return await relay(request, kind)

    handle.__name__ = kind
    handle.__doc__ = f"{summary}. Every field of vLLM's request is understood."
    return post(
        paths,
        status_code=200,
        operation_class=operation(body),
        responses=ERRORS,
        raises=[],
        tags=[body.tag],
        summary=summary,
    )(handle)
