"""What is left of a request body when the answer has been sent: a refused upload, a route that reads none."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from litestar.types import HTTPReceiveMessage, Receive
from litestar.types.asgi_types import WebSocketReceiveMessage

MOST_BYTES = 64 << 20
MOST_S = 5.0
"""How much of it is read, and for how long; who sends on finds the connection closed."""


class Upload:
    """Stands between a server and an application, knows how far a request body has been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def receive(self) -> HTTPReceiveMessage | WebSocketReceiveMessage:
        """The server's `receive`."""
        message = await self._receive()
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def discard_rest(self) -> None:
        """Read on once the answer has been sent.

        A connection that is closed with unread data in it is reset: the client fails in its sending, mostly before it
        has read the answer, and cannot use the connection again.
        """
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                while not self._ended and size <= MOST_BYTES:
                    message = await self.receive()
                    if message["type"] == "http.request":
                        size += len(message.get("body", b""))
