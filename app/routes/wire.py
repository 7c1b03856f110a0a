"""One accepted WebSocket: frames come in one by one and go out in order, and nobody is waited for without an end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from litestar import WebSocket
from litestar.exceptions import WebSocketDisconnect

_LAST_WORDS_S = 2.0
"""How long a client may hold up the end of its socket."""


class LostClientError(Exception):
    """Nothing can be sent: the client has gone, or reads nothing."""


class Wire:
    """`slow_s`: how long a client may take to read a frame. `sent_at`: when it had done so last, by the loop's clock.

    `stop` has to be called at the end, whatever has happened.

    A task of its own receives, because a receive that is cancelled may lose what it has received. One frame waits here
    at most, the rest stays where TCP keeps it.
    """

    def __init__(self, socket: WebSocket[Any, Any, Any], slow_s: float) -> None:
        self._socket = socket
        self._slow_s = slow_s
        self._lock = asyncio.Lock()
        self._frames: asyncio.Queue[str | bytes] = asyncio.Queue(1)
        self._gone = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self.sent_at = self._clock()
        self._receiving = asyncio.create_task(self._receive())

    async def receive(self) -> str | bytes:
        """The next frame of the client; waits for ever once it has gone."""
        return await self._frames.get()

    async def gone(self) -> None:
        """Return once the client has closed the socket or cannot be reached any more."""
        await self._gone.wait()

    async def send(self, frame: str | bytes) -> None:
        """Send a frame, after those that are being sent; returns when the server has taken it, which the client delays.

        Raises:
            LostClientError: it cannot be sent.
        """
        kind = "text" if isinstance(frame, str) else "bytes"
        try:
            async with asyncio.timeout(self._slow_s), self._lock:
                await self._send({"type": "websocket.send", kind: frame})
        except (OSError, RuntimeError, WebSocketDisconnect) as error:  # a TimeoutError is an OSError
            raise LostClientError from error
        self.sent_at = self._clock()

    async def close(self, code: int, reason: str, last_words: str = "") -> None:
        """Say goodbye, if somebody is there to hear it."""
        with suppress(OSError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(_LAST_WORDS_S), self._lock:
                if last_words:
                    await self._send({"type": "websocket.send", "text": last_words})
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def stop(self) -> None:
        """Receive no more."""
        self._receiving.cancel()

    async def _send(self, message: Any) -> None:
        if self._gone.is_set():
            raise WebSocketDisconnect(detail="the client has gone")
        await self._socket.send(message)

    async def _receive(self) -> None:
        try:
            while True:
                message: Any = await self._socket.receive()
                if message["type"] != "websocket.receive":
                    return
                text = message.get("text")
                await self._frames.put(text if text is not None else message.get("bytes") or b"")
        finally:
            self._gone.set()
