"""Errors that a client sees: one exception, one body, stable types and codes (OpenAI's error object)."""

from __future__ import annotations

import msgspec


class ErrorObject(msgspec.Struct):
    """The value under "error"."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every 4xx and 5xx on every route."""

    error: ErrorObject


class ApiError(Exception):
    """Raise it anywhere under a route: it becomes `status` with an ErrorBody."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(ErrorObject(message, type or default_type(status), param, code))
        self.headers = headers or {}


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def default_type(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def invalid(param: str, problem: str) -> ApiError:
    """400: the value of a field, or what it does together with another."""
    return ApiError(400, f"{param}: {problem}.", param=param, code="invalid_value")


def unsupported(param: str, reason: str) -> ApiError:
    """400: a field that is understood and cannot have its effect here."""
    return ApiError(400, f"{param} cannot be honoured: {reason}.", param=param, code="unsupported_parameter")
