"""WebSocket /v1/realtime/robot/openpi: a robot sends what it observes, and gets the actions that follow."""

from __future__ import annotations

from typing import Any

from litestar import WebSocket, websocket
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.protocol.robot import TASK
from app.routes.robotsession import RobotSession
from app.routes.socketlife import refuse_socket, serve_session


async def may_act(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: what can be told before the socket is accepted is told as HTTP tells it.

    Raises:
        ApiError: 403, a page of another origin; 404, the model is not served here, or moves no robots; 503, no replica
            of it is up, or the server stops.
    """
    refuse_socket(connection, TASK)


@websocket("/v1/realtime/robot/openpi", guards=[may_act])
async def act(socket: WebSocket[Any, Any, Any]) -> None:
    """One session; its messages are in app.protocol.robot."""
    await serve_session(socket, RobotSession)
