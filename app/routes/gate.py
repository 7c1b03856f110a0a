"""What is refused before any route is looked up: headers out of all proportion, browsers of other origins."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

from litestar.config.cors import CORSConfig
from litestar.connection import ASGIConnection
from litestar.types import HTTPScope, WebSocketScope

from app.protocol.errors import ApiError
from app.routes.state import settings
from app.settings.schema import ServerConfig


def cors_config(server: ServerConfig) -> CORSConfig | None:
    """Litestar's settings for the allowed origins; None without any: no page of another origin gets in."""
    if not server.allowed_origins:
        return None
    methods: list[Any] = [method.upper() for method in server.allowed_methods]
    return CORSConfig(
        allow_origins=server.allowed_origins,
        allow_methods=methods,
        allow_headers=server.allowed_headers,
        allow_credentials=server.allow_credentials,
        expose_headers=["Retry-After", "X-Request-Id"],
    )


def refusal(scope: HTTPScope | WebSocketScope, server: ServerConfig, cors: CORSConfig | None) -> ApiError | None:
    """What to answer in place of the application; None lets the request in."""
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > server.max_header_bytes:
        message = f"The headers have {size} bytes, more than {server.max_header_bytes} (--max-header-bytes)."
        return ApiError(431, message, code="headers_too_large")
    if cors is not None and cast("dict[str, Any]", scope).get("method") == "OPTIONS":  # WebSockets have none
        return _preflight_refusal(dict(scope["headers"]), cors)
    return None


def refuse_foreign_page(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """For what browsers let a page of another origin do without asking: sending forms, opening WebSockets.

    Raises:
        ApiError: 403, a page of an origin that is not allowed.
    """
    origin = connection.headers.get("origin")
    if origin is None:
        return
    own = {connection.headers.get("host", ""), urlsplit(settings(connection.app).server.public_base_url).netloc}
    cors = connection.app.cors_config
    if urlsplit(origin).netloc not in own - {""} and not (cors and cors.is_origin_allowed(origin)):
        raise _cors_error(f"Pages of the origin {origin[:200]!r} may not use this route (--allowed-origins).")


def _preflight_refusal(headers: dict[bytes, bytes], cors: CORSConfig) -> ApiError | None:
    """Litestar would refuse these too, but in plain text."""
    origin, method, names = (
        headers.get(name, b"").decode("latin-1")
        for name in (b"origin", b"access-control-request-method", b"access-control-request-headers")
    )
    if not origin:
        return None
    if not cors.is_origin_allowed(origin):
        return _cors_error(f"Pages of the origin {origin[:200]!r} may not call this server (--allowed-origins).")
    if method and not cors.is_allow_all_methods and method not in cors.allow_methods:
        return _cors_error(f"Pages of other origins may not use {method[:20]!r} here (--allowed-methods).")
    allowed = {*cors.allow_headers, *_ALWAYS}
    for name in (part.strip().lower() for part in names.split(",")):
        if name and not cors.is_allow_all_headers and name not in allowed:
            return _cors_error(f"Pages of other origins may not send the header {name[:100]!r} (--allowed-headers).")
    return None


def _cors_error(message: str) -> ApiError:
    return ApiError(403, message, code="cors_refused")


_ALWAYS = ("accept", "accept-language", "content-language", "content-type")
"""Request headers that a page may send without asking."""
