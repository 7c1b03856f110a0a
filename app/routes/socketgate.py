"""WebSockets before and after their life: refused as HTTP requests are, one line in the log, counted for /metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app.protocol.errors import ApiError
from app.routes.errors import internal_error
from app.routes.trace import conclude, trace_of
from app.signals import hold_stop

logger = logging.getLogger("app.routes")

INTERNAL_ERROR = 1011
POLICY = 1008
TRY_AGAIN = 1013
_ERROR = "omni.error"


async def remember_error(error: Exception, scope: Scope) -> None:
    """Litestar's after_exception hook: of an error in a WebSocket handler Litestar itself keeps only a number."""
    if scope["type"] == ScopeType.WEBSOCKET:
        cast("dict[str, Any]", scope)[_ERROR] = error


async def guarded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run a Litestar application for one WebSocket.

    What is refused before the socket is accepted gets a status and OpenAI's error body; a fault of ours after that
    closes it with 1011. `remember_error` has to be among the application's hooks.
    """
    trace = trace_of(scope)

    async def send_translated(message: Message) -> None:
        if message["type"] == "websocket.accept":
            trace.status = 101
        elif message["type"] == "websocket.http.response.start":
            trace.status = message["status"]
        elif message["type"] == "websocket.close" and not trace.status:
            error = _refusal(scope, trace.request_id)
            trace.status = error.status
            await deny(error, scope, send)
            return
        elif message["type"] == "websocket.close" and _ERROR in scope:
            trace.outcome = "failed"
            _log(scope, trace.request_id)
            message["code"], message["reason"] = INTERNAL_ERROR, "internal error"
        await send(message)

    try:
        with hold_stop():
            await app(scope, receive, send_translated)
    finally:
        conclude(scope, "WEBSOCKET", trace)


def _refusal(scope: Scope, request_id: str) -> ApiError:
    match cast("dict[str, Any]", scope).get(_ERROR):
        case ApiError() as error:
            return error
        case HTTPException() as error if error.status_code < 500:  # a path of no route, or of one that is no WebSocket
            message = f"There is no WebSocket {scope['path']} on this server."
            return ApiError(404, message, code="unknown_route")
    _log(scope, request_id)
    return internal_error(request_id)


def _log(scope: Scope, request_id: str) -> None:
    error = cast("dict[str, Any]", scope).get(_ERROR)
    logger.error("request %s: WebSocket %s failed", request_id, scope["path"], exc_info=error)


async def deny(error: ApiError, scope: Scope, send: Send) -> None:
    """Refuse a WebSocket that has not been accepted; servers that cannot send a response make a 403 of it."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        code = TRY_AGAIN if error.status == 503 else POLICY
        close: Any = {"type": "websocket.close", "code": code, "reason": str(error)[:120]}
        await send(close)
        return
    headers: Iterable[tuple[str, str]] = {"Content-Type": "application/json", **error.headers}.items()
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    start: Any = {"type": "websocket.http.response.start", "status": error.status, "headers": encoded}
    await send(start)
    body: Any = {"type": "websocket.http.response.body", "body": msgspec.json.encode(error.body)}
    await send(body)
