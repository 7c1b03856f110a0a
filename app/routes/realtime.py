"""WebSocket /v1/realtime: conversations in text and sound, in OpenAI's event dialect."""

from __future__ import annotations

from typing import Any

from litestar import WebSocket, websocket
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.protocol.errors import unsupported
from app.routes.realtimesession import RealtimeSession
from app.routes.socketlife import refuse_socket, serve_session

_NOT_HERE = {
    "intent": "this server has realtime sessions only; recordings are written down by /v1/audio/transcriptions",
    "call_id": "there are no calls here that could be joined",
}


async def may_converse(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: what can be told before the socket is accepted is told as HTTP tells it.

    Raises:
        ApiError: 400, another kind of session is asked for; 403, a page of another origin; 404, the model is not
            served here, or does not chat; 503, no replica of it is up, or the server stops.
    """
    for name, reason in _NOT_HERE.items():
        if name in connection.query_params:
            raise unsupported(name, reason)
    refuse_socket(connection, "chat")


@websocket("/v1/realtime", guards=[may_converse])
async def converse(socket: WebSocket[Any, Any, Any]) -> None:
    """One session; its events are in app.protocol.realtimeclient and app.protocol.realtimeserver."""
    await serve_session(socket, RealtimeSession)
