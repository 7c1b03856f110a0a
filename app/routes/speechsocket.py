"""WebSocket /v1/audio/speech/stream: text comes in as it is written, speech goes out as it is made."""

from __future__ import annotations

from typing import Any

from litestar import WebSocket, websocket
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.routes.socketlife import refuse_socket, serve_session
from app.routes.speechsession import SpeechSession


async def may_speak(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: what can be told before the socket is accepted is told as HTTP tells it.

    Raises:
        ApiError: 403, a page of another origin; 404, the model is not served here, or does not speak; 503, no replica
            of it is up, or the server stops.
    """
    refuse_socket(connection, "speech")


@websocket("/v1/audio/speech/stream", guards=[may_speak])
async def stream_speech(socket: WebSocket[Any, Any, Any]) -> None:
    """One session; its messages are in app.protocol.speechsocket."""
    await serve_session(socket, SpeechSession)
