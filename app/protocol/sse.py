"""Framing of server-sent events as OpenAI's clients read them."""

from __future__ import annotations

import msgspec

from app.protocol.errors import ErrorBody

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def failed_ending(body: ErrorBody) -> bytes:
    """How OpenAI's streams end that cannot go on."""
    return error_frame(body) + DONE


def named_frame(name: str, *data: bytes | memoryview) -> bytes:
    """One event of a stream whose events have names; `data` is one line of JSON, in as many pieces as it comes."""
    return b"".join((b"event: %b\ndata: " % name.encode(), *data, b"\n\n"))


def named_error_frame(body: ErrorBody) -> bytes:
    """The same for streams of named events; OpenAI's and Anthropic's clients both find what they look for."""
    error = msgspec.json.encode(body.error)
    return named_frame("error", b'{"type":"error","error":' + error + b"}")


def error_frame(body: ErrorBody) -> bytes:
    """The event that ends a stream which cannot go on; OpenAI's clients raise it as an APIError."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
