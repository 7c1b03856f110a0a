"""Exception handlers: whatever goes wrong under a route becomes OpenAI's error body."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from app.protocol.errors import ApiError, invalid
from app.routes.state import settings
from app.routes.trace import trace_of

logger = logging.getLogger("app.routes")

CLIENT_CLOSED_REQUEST = 499
"""Status in the log of a request whose client left before the answer."""

_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    404: "unknown_route",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}


class ClientGoneError(Exception):
    """The client closed the connection before there was an answer to send."""


def shutting_down() -> ApiError:
    """What every request is told that comes too late; another server should get the next one."""
    headers = {"Connection": "close", "Retry-After": "1"}
    return ApiError(503, "The server is shutting down.", code="shutting_down", headers=headers)


def error_response(request: Request[Any, Any, Any], error: ApiError) -> Response[Any]:
    """The response that carries `error`."""
    return Response(error.body, status_code=error.status, headers=error.headers, media_type="application/json")


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Litestar's own refusals (no such route, wrong method, body too large, ...); its 500s are faults of ours."""
    if error.status_code >= 500:
        return on_exception(request, error)
    if isinstance(error, ValidationException) and (told := _parameter(error)) is not None:
        return error_response(request, told)
    headers = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    code = _CODES.get(error.status_code)
    return error_response(request, ApiError(error.status_code, _in_words(request, error), code=code, headers=headers))


def on_client_gone(request: Request[Any, Any, Any], error: ClientGoneError) -> Response[Any]:
    """Nobody is there to read it, unless what came was no HTTP (a chunk without a length looks the same from here)."""
    trace_of(request.scope).outcome = "client gone"
    message = "The request ended before it was complete."
    return error_response(request, ApiError(CLIENT_CLOSED_REQUEST, message, code="incomplete_request"))


def on_exception(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of ours: the traceback goes to the log once, the client gets the id to quote."""
    trace = trace_of(request.scope)
    trace.outcome = "failed"
    logger.error("request %s: %s %s failed", trace.request_id, request.method, request.url.path, exc_info=error)
    return error_response(request, internal_error(trace.request_id))


def internal_error(request_id: str) -> ApiError:
    """What a client is told of a fault of ours: nothing but where to find it."""
    message = f"The server failed on this request. Its log has the cause under request id {request_id}."
    return ApiError(500, message, code="internal_error")


def _parameter(error: ValidationException) -> ApiError | None:
    """What is wrong with the first parameter that is: Litestar's list of them, which names each by its `key`."""
    for found in error.extra if isinstance(error.extra, list) else ():
        if isinstance(found, dict) and found.get("key"):
            return invalid(str(found["key"]), str(found.get("message", "is invalid")).rstrip("."))
    return None


def _in_words(request: Request[Any, Any, Any], error: HTTPException) -> str:
    path = request.scope["path"]
    match error.status_code:
        case 404:
            return f"There is no route {request.method} {path} on this server; /docs lists its routes."
        case 405:
            allowed = (error.headers or {}).get("allow", "another method")
            return f"{path} does not answer {request.method}, only {allowed}."
        case 413:
            limit = settings(request.app).server.max_body_bytes
            return f"The request body is larger than {limit} bytes, the limit of this server (--max-body-bytes)."
        case status:
            return error.detail or HTTPStatus(status).phrase


exception_handlers: ExceptionHandlersMap = {
    ApiError: error_response,
    ClientGoneError: on_client_gone,
    HTTPException: on_http_exception,
    Exception: on_exception,
}
