"""Framing of server-sent events as OpenAI's clients read them."""

from __future__ import annotations

import msgspec

from app.protocol.errors import ErrorBody

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def error_frame(body: ErrorBody) -> bytes:
    """The event that ends a stream which cannot go on; OpenAI's clients raise it as an APIError."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
