"""How long a WebSocket lives: until one of its parts has had enough, the client leaves, or the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from litestar import Litestar, WebSocket
from litestar.connection import ASGIConnection

from app.pipeline.graph import unavailable
from app.protocol.errors import ApiError
from app.protocol.models import served_name
from app.routes.auth import chosen_protocol
from app.routes.errors import internal_error, shutting_down
from app.routes.gate import refuse_foreign_page
from app.routes.socketgate import INTERNAL_ERROR
from app.routes.state import draining, model_names, orchestrator, settings, stopping
from app.routes.trace import trace_of
from app.routes.wire import LostClientError, Wire

logger = logging.getLogger("app.routes")

LARGE = 256 << 10
"""Characters of a message which takes long enough to decode for other clients to notice."""

NORMAL = 1000
GOING_AWAY = 1001
TIMED_OUT = 4408


class Ending(NamedTuple):
    """How a socket is closed: its code and reason, and what the client is told before."""

    code: int
    reason: str
    error: ApiError | None = None


def refuse_socket(connection: ASGIConnection[Any, Any, Any, Any], task: str) -> None:
    """What can be told before a socket is accepted is told as HTTP tells it.

    Raises:
        ApiError: 403, a page of another origin; 404, the model is not served here, or does not do `task`; 503, no
            replica of it is up, or the server stops.
    """
    refuse_foreign_page(connection)
    if stopping(connection.app).is_set():
        raise shutting_down()
    served_name(model_names(connection.app), connection.query_params.get("model"))
    stages = orchestrator(connection.app)
    asked = stages.stage_of(task)
    missing = [stage.name for stage in stages.status() if stage.stage_id == asked and not stage.ready]
    if missing:
        raise unavailable(missing)


class Session(Protocol):
    """What happens on a socket that has been accepted."""

    async def run(self) -> None: ...


async def serve_session(
    socket: WebSocket[Any, Any, Any], session: Callable[[Litestar, Wire, str, str], Session]
) -> None:
    """Accept the socket and run the session that is made of the application, the wire, the model that the URL names
    ("" for none), and the id in the log.
    """
    await socket.accept(subprotocols=chosen_protocol(socket.scope["subprotocols"]))
    wire = Wire(socket, settings(socket.app).server.slow_client_timeout_s)
    try:
        model = socket.query_params.get("model", "")
        await session(socket.app, wire, model, trace_of(socket.scope).request_id).run()
    finally:
        wire.stop()


async def first_ending(
    parts: Sequence[Coroutine[Any, Any, Ending]], session_id: str, on_end: Callable[[], None]
) -> Ending:
    """Run the parts of a socket until the first of them ends or fails; the others are cancelled after `on_end`."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        on_end()
        return _ending(done, session_id)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _ending(done: set[asyncio.Task[Ending]], session_id: str) -> Ending:
    for part in done:
        error = part.exception()
        if error is None:
            return part.result()
        if not isinstance(error, LostClientError):
            logger.error("request %s: the socket failed", session_id, exc_info=error)
            return Ending(INTERNAL_ERROR, "internal error", internal_error(session_id))
    return Ending(TIMED_OUT, "nothing was read")


async def until_gone(wire: Wire) -> Ending:
    """The client has left."""
    await wire.gone()
    return Ending(NORMAL, "")


async def until_stopped(app: Litestar, idle: asyncio.Event) -> Ending:
    """After a stop signal what has been begun is brought to its end, as long as the server has time for it."""
    await stopping(app).wait()
    waits = [asyncio.create_task(event.wait()) for event in (idle, draining(app))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return Ending(GOING_AWAY, "the server is shutting down", None if idle.is_set() else shutting_down())


def idle_for(limit_s: float, awaited: str) -> Ending:
    """Nothing that was `awaited` came for so many seconds."""
    message = f"No {awaited} came for {limit_s:g} s."
    return Ending(TIMED_OUT, "timed out", ApiError(408, message, code="idle_timeout"))
