"""API keys: `Authorization: Bearer <key>` (or `X-Api-Key: <key>`) on every route that is not marked public.

OpenPI's client calls the scheme Api-Key.

Browsers cannot send headers with a WebSocket; there the key may come as a subprotocol. It never comes in a URL, which
ends up in logs.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Any, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.protocol.errors import ApiError
from app.routes.state import settings

KEY_PROTOCOL = "openai-insecure-api-key."
"""What a subprotocol begins with that holds a key: OpenAI's name for it."""


async def require_key(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard. Routes with opt public=True stay open; without configured keys every route is open.

    It is a coroutine because Litestar runs other guards in a thread.

    Raises:
        ApiError: 401, no key or a wrong one.
    """
    keys = settings(connection.app).server.api_keys
    if not keys or handler.opt.get("public"):
        return
    key = _sent_key(connection)
    if not key:
        raise _unauthorized("This server needs an API key: send the header 'Authorization: Bearer <key>'.")
    if not _known(key.strip().encode("latin-1", "replace"), tuple(keys)):  # subprotocols may hold anything
        raise _unauthorized("The API key of this request is not known to this server.")


def caller(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Whose request it is, as long as keys are configured: a digest of the key; "" for everybody otherwise."""
    return (
        _digest(_sent_key(connection).strip().encode("latin-1", "replace")).hex()
        if settings(connection.app).server.api_keys
        else ""
    )


def _sent_key(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """The bearer token, what Anthropic's clients send, or what is in a WebSocket's subprotocol; empty without any."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "api-key"):
        return token
    if key := connection.headers.get("x-api-key", ""):
        return key
    offered: list[str] = cast("dict[str, Any]", connection.scope).get("subprotocols", [])  # only WebSockets have them
    return next((name for name in offered if name.startswith(KEY_PROTOCOL)), "").removeprefix(KEY_PROTOCOL)


def chosen_protocol(offered: list[str]) -> str | None:
    """The subprotocol to accept a WebSocket with, of those that the client offers: browsers insist on one of them."""
    return next((name for name in offered if not name.startswith(KEY_PROTOCOL)), next(iter(offered), None))


async def require_admin(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard of routes that change the server for everybody, after `require_key`.

    Raises:
        ApiError: 403, this server has no API keys, so that anybody could call it.
    """
    if not settings(connection.app).server.api_keys:
        message = "This route changes the server for everybody; it works only on servers with an API key (--api-key)."
        raise ApiError(403, message, code="admin_key_required")


def _known(key: bytes, keys: tuple[str, ...]) -> bool:
    """Compare digests, all of them: neither the length nor the place of a match shows in the time it takes."""
    digest = _digest(key)
    matches = [hmac.compare_digest(digest, expected) for expected in _digests(keys)]
    return any(matches)


@lru_cache(maxsize=8)
def _digests(keys: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(_digest(key.encode()) for key in keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
