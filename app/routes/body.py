"""Reading a request body: within the limits of size and patience, and no longer than the server has time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from litestar import Litestar, Request
from litestar.exceptions import InternalServerException

from app.protocol.decoding import BodyDecoder, refuse_repeated_keys
from app.protocol.errors import ApiError
from app.routes.errors import ClientGoneError, shutting_down
from app.routes.state import draining, settings, uploads

T = TypeVar("T")

_LARGE = 1 << 18
"""Bytes of a body that takes long enough to decode for other requests to notice."""


async def json_body(request: Request[Any, Any, Any]) -> bytes:
    """The body as it came, at most as long as the server's limit.

    Raises:
        ApiError: 415, it is declared to be something else than JSON; and what `read_body` raises.
    """
    _require_json(request)
    return await read_body(request)


async def read_strictly(request: Request[Any, Any, Any], decoder: BodyDecoder[T]) -> T:
    """The JSON body of an administrator's order, in which no key stands twice.

    Raises:
        ApiError: what `json_body` and the decoder raise; 400, a key that does.
    """
    body = await json_body(request)
    asked = decoder.decode(body)
    refuse_repeated_keys(body)
    return asked


async def decode_body(decoder: BodyDecoder[T], body: bytes) -> T:
    """The body as the decoder's struct; a large one (pictures as data URLs) is decoded beside the event loop.

    Raises:
        ApiError: 400, as BodyDecoder.decode.
    """
    return await decoded(body, decoder.decode)


async def decoded(body: bytes, decode: Callable[[bytes], T]) -> T:
    """What `decode` makes of the body, beside the event loop where it is large."""
    return decode(body) if len(body) < _LARGE else await asyncio.to_thread(decode, body)


async def read_body(request: Request[Any, Any, Any]) -> bytes:
    """The body as it came, whatever it is.

    Raises:
        RequestEntityTooLarge: 413, by its Content-Length or once the limit has been received.
        ApiError: 408, nothing more of it came; 503, the server has no more time.
        ClientGoneError: the client left before the end of it.
    """
    pieces: list[bytes] = []
    await feed(request, pieces.append)
    return b"".join(pieces)


async def feed(request: Request[Any, Any, Any], take: Callable[[bytes], object]) -> None:
    """Hand the body to `take`, piece by piece as it comes; raises what `read_body` and `take` raise."""
    reading = uploads(request.app)
    patience = asyncio.timeout(settings(request.app).server.slow_client_timeout_s)
    reading.add(patience)
    try:
        async with patience:
            await _pass_on(request, patience, take)
    except InternalServerException:  # Litestar's word for a disconnect in the middle of a body
        raise ClientGoneError from None
    except TimeoutError:
        raise _too_late(request) from None
    finally:
        reading.discard(patience)


async def _pass_on(request: Request[Any, Any, Any], patience: asyncio.Timeout, take: Callable[[bytes], object]) -> None:
    clock, limit_s = asyncio.get_running_loop().time, settings(request.app).server.slow_client_timeout_s
    async for piece in request.stream():
        take(piece)
        if not patience.expired() and not draining(request.app).is_set():
            patience.reschedule(clock() + limit_s)


def _too_late(request: Request[Any, Any, Any]) -> ApiError:
    if draining(request.app).is_set():
        return shutting_down()
    limit_s = settings(request.app).server.slow_client_timeout_s
    message = f"Nothing more of the request body came for {limit_s:g} s (--slow-client-timeout)."
    return ApiError(408, message, code="slow_client", headers={"Connection": "close"})


def end_uploads(app: Litestar) -> None:
    """Read no more of any body, once `draining` is set: who is still sending gets a 503."""
    now = asyncio.get_running_loop().time()
    for patience in uploads(app):
        if not patience.expired():
            patience.reschedule(now)


def media_type(request: Request[Any, Any, Any]) -> str:
    """What the body is declared to be: lower case, without parameters, "" for nothing.

    Raises:
        ApiError: 415, it is compressed.
    """
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        message = f"Request bodies must not be compressed (Content-Encoding {encoding!r})."
        raise ApiError(415, message, code="unsupported_media_type")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _require_json(request: Request[Any, Any, Any]) -> None:
    """A browser sends JSON to another origin without asking that server first, unless it has to declare it as JSON."""
    declared = media_type(request)
    if declared != "application/json" and not (declared.startswith("application/") and declared.endswith("+json")):
        got = f"not {declared!r}" if declared else "and it is missing"
        message = f"The request needs the header 'Content-Type: application/json', {got}."
        raise ApiError(415, message, code="unsupported_media_type")
