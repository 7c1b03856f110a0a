"""What happens on the socket of one robot: observations are answered one after another, in their order."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import Litestar

from app.protocol.errors import ApiError, invalid
from app.protocol.robot import TASK, PolicyCard
from app.protocol.speechsocket import socket_error
from app.routes.relay import whole
from app.routes.socketlife import Ending, first_ending, idle_for, until_gone, until_stopped
from app.routes.state import draining, orchestrator, settings
from app.routes.trace import unique
from app.routes.wire import Wire


class RobotSession:
    """One client. `model` is the one that it named in the URL, "" for none; `session_id` is for the log."""

    def __init__(self, app: Litestar, wire: Wire, model: str, session_id: str) -> None:
        self._app = app
        self._wire = wire
        self._model = model
        self._id = session_id
        self._limits = settings(app).server
        self._idle = asyncio.Event()

    async def run(self) -> None:
        """Serve the client until one of the two has had enough, then close the socket."""
        parts = (self._serve(), until_gone(self._wire), until_stopped(self._app, self._idle))
        ending = await first_ending(parts, self._id, lambda: None)
        last_words = "" if ending.error is None else socket_error(ending.error).encode()
        await self._wire.close(ending.code, ending.reason, last_words)

    async def _serve(self) -> Ending:
        card = msgspec.json.decode(orchestrator(self._app).card_of(TASK), type=PolicyCard)
        await self._wire.send(msgspec.msgpack.encode(card))
        while True:
            self._idle.set()
            limit_s = self._limits.robot_idle_s
            try:
                async with asyncio.timeout(limit_s or None):
                    frame = await self._wire.receive()
            except TimeoutError:
                return idle_for(limit_s, "observation")
            self._idle.clear()
            await self._wire.send(await self._answer(frame))

    async def _answer(self, frame: str | bytes) -> bytes | str:
        """The actions, or what was wrong: the session goes on in both cases."""
        try:
            if isinstance(frame, str):
                raise invalid("observation", "is missing: observations are msgpack in binary frames")
            return await self._actions(frame)
        except ApiError as error:
            return socket_error(error).encode()

    async def _actions(self, observation: bytes) -> bytes:
        """
        Raises:
            ApiError: whatever the replica refuses.
        """
        stream = await orchestrator(self._app).submit(
            TASK,
            unique(self._id),
            observation,
            model=self._model,
            limit_s=self._limits.request_timeout_s,
            whole=True,
        )
        try:
            return await whole(stream)
        finally:
            await stream.aclose("shutdown" if draining(self._app).is_set() else "client_disconnect")
