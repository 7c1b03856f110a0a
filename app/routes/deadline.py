"""How long a request may take: the server's limit, or the client's own in X-Request-Timeout where that is shorter."""

from __future__ import annotations

import math
from typing import Any

from litestar import Request

from app.protocol.errors import ApiError
from app.routes.state import settings

HEADER = "X-Request-Timeout"


def time_limit(request: Request[Any, Any, Any]) -> float:
    """Seconds until the whole answer must be there; 0 means no limit.

    Raises:
        ApiError: 400, the header is no number of seconds above 0.
    """
    limits = [settings(request.app).server.request_timeout_s, _asked(request)]
    return min((limit for limit in limits if limit > 0), default=0.0)


def _asked(request: Request[Any, Any, Any]) -> float:
    text = request.headers.get(HEADER)
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        message = f"{HEADER} must be a number of seconds above 0, got {text[:50]!r}."
        raise ApiError(400, message, param=HEADER, code="invalid_header")
    return seconds
