"""A streamed response, server-sent events or a file, that ends well whatever happens: error, lost client, shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from litestar import Request, Response
from litestar.types import ASGIApp, Receive, Scope, Send

from app.protocol.errors import ApiError, ErrorBody
from app.protocol.sse import KEEP_ALIVE
from app.routes.errors import ClientGoneError, internal_error
from app.routes.interrupt import Interrupt
from app.routes.trace import Outcome, trace_of

logger = logging.getLogger("app.routes")

Headers = list[tuple[bytes, bytes]]

EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_LAST_WORDS_S = 5.0
"""How long a client that reads slowly may hold up the end of its stream."""


class EventStream(Response[None]):
    """Sends `frames`, each one or several whole events, the last of which ends the stream as its API does it.

    `client` interrupts when the client leaves; `aclose` stops the work and is always called, once. While `frames` is
    silent a comment goes out every `keep_alive_s` seconds (0: never). `drain` interrupts when the server has no more
    time; the stream then ends with an error event: what `ending` makes of an error. Without `ending` the frames are the
    pieces of a file, which cannot tell of an error: the connection breaks, so that nobody takes them for all of it.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        client: Interrupt,
        aclose: Callable[[], Awaitable[None]],
        *,
        ending: Callable[[ErrorBody], bytes] | None,
        drain: Interrupt,
        keep_alive_s: float,
        headers: Headers = EVENT_STREAM,
    ) -> None:
        super().__init__(None)
        self._frames = frames
        self._aclose = aclose
        self._client = client
        self._ending = ending
        self._drain = drain
        self._keep_alive_s = keep_alive_s
        self._stream_headers = headers

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **_: Any) -> ASGIApp:  # type: ignore[override]
        """The ASGI application that sends the stream."""
        return self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        trace.outcome = "failed"
        try:
            with self._client.raising(ClientGoneError()):
                await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers})
                trace.outcome, ending = await self._send_frames(send, trace.request_id)
                if ending is None:
                    return
                async with asyncio.timeout(_LAST_WORDS_S):
                    await send({"type": "http.response.body", "body": ending, "more_body": False})
        except (ClientGoneError, OSError):  # OSError: a send to nobody, or the timeout
            trace.outcome = "client gone"
        finally:
            await self._aclose()

    async def _send_frames(self, send: Send, request_id: str) -> tuple[Outcome, bytes | None]:
        """Send everything; returns how it ended and what is still to be sent to end it, None if it cannot be ended."""
        try:
            with self._drain.raising(_DrainingError()):
                await self._pump(send)
        except _DrainingError:
            stopping = ApiError(503, "The server is shutting down; this answer is not complete.", code="shutting_down")
            return "draining", self._tell(stopping)
        except ApiError as error:
            return "failed", self._tell(error)
        except ClientGoneError:
            raise
        except Exception:
            logger.exception("request %s failed while it streamed", request_id)
            return "failed", self._tell(internal_error(request_id))
        return "done", b""

    def _tell(self, error: ApiError) -> bytes | None:
        return None if self._ending is None else self._ending(error.body)

    async def _pump(self, send: Send) -> None:
        pacer = _Pacer(send, self._keep_alive_s)
        keep_alive = asyncio.create_task(pacer.keep_alive())
        try:
            async for frame in self._frames:
                await pacer.send(frame)
        finally:
            keep_alive.cancel()
            await asyncio.wait({keep_alive})


class _DrainingError(Exception):
    """The server was told to stop."""


class _Pacer:
    """The one sender of a stream: frames as they come, a comment when none has come for `period` seconds."""

    def __init__(self, send: Send, period: float) -> None:
        self._send = send
        self._period = period
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()
        self._lock = asyncio.Lock()

    async def send(self, frame: bytes) -> None:
        """Returns when the server has taken the frame, which a slow client delays.

        Raises:
            ClientGoneError: the server says that nobody is there any more.
        """
        await self._lock.acquire()
        try:
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        except OSError as error:  # what ASGI servers may raise once the client has gone
            raise ClientGoneError from error
        finally:
            self._lock.release()
        self._last = self._clock()

    async def keep_alive(self) -> None:
        """Send comments until cancelled, or until a send fails: the next frame meets the same failure."""
        with suppress(ClientGoneError):
            while self._period:
                idle = self._clock() - self._last
                if idle < self._period:
                    await asyncio.sleep(self._period - idle)
                else:
                    await self.send(KEEP_ALIVE)
