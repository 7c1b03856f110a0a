"""Reading a JSON request body."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.exceptions import InternalServerException

from app.protocol.errors import ApiError
from app.routes.errors import ClientGoneError


async def json_body(request: Request[Any, Any, Any]) -> bytes:
    """The body as it came, at most as long as the server's limit.

    Raises:
        ApiError: 415, it is declared to be something else than JSON.
        RequestEntityTooLarge: 413, by its Content-Length or once the limit has been received.
        ClientGoneError: the client left before the end of it.
    """
    _require_json(request)
    try:
        return await request.body()
    except InternalServerException:  # Litestar's word for a disconnect in the middle of a body
        raise ClientGoneError from None


def _require_json(request: Request[Any, Any, Any]) -> None:
    """A browser sends JSON to another origin without asking that server first, unless it has to declare it as JSON."""
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        got = f"not {declared!r}" if declared else "and it is missing"
        message = f"The request needs the header 'Content-Type: application/json', {got}."
        raise ApiError(415, message, code="unsupported_media_type")
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        message = f"Request bodies must not be compressed (Content-Encoding {encoding!r})."
        raise ApiError(415, message, code="unsupported_media_type")
