"""A WebSocket by hand, as an ASGI server would run it, and a scripted model that speaks on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.cluster.messages import AnyEvent, Audio, Done, Usage
from tests.routes.serving import Served

PATH = "/v1/audio/speech/stream"
FRAME = b"\1\2" * 600


def piece(text: str = "", data: bytes = FRAME) -> Audio:
    return Audio(0, memoryview(data), "mp3", 24_000, len(data) // 2, text)


class Spoken:
    """RequestStream's contract: it says each word that is appended, and ends after the last one.

    A word of `cues` is a failure in its place, or an event that has to be set before the next one.
    """

    def __init__(self, cues: dict[str, Exception | asyncio.Event]) -> None:
        self._cues = cues
        self._words: asyncio.Queue[str | None] = asyncio.Queue()
        self.appended = b""
        self.last = 0
        self.closed_for: list[str] = []

    def append(self, data: bytes, *, last: bool = False) -> None:
        assert not self.last, "text after the last text"
        self.appended += data
        self.last += last
        for word in data.decode().split():
            self._words.put_nowait(word)
        if last:
            self._words.put_nowait(None)

    def __aiter__(self) -> Spoken:
        return self

    async def __anext__(self) -> list[AnyEvent]:
        if self.last == 2:
            raise StopAsyncIteration
        word = await self._words.get()
        if word is None:
            self.last = 2
            return [Usage(3, 8), Done()]
        cue = self._cues.get(word)
        if isinstance(cue, Exception):
            raise cue
        if cue is not None:
            await cue.wait()
        return [piece(word)]

    async def aclose(self, reason: str = "client_disconnect") -> None:
        self.closed_for.append(reason)


class SocketClient:
    """The client's end. `status`: what the handshake was answered with; `closed`: code and reason at the end.

    `lingers`: turns of the loop for which the server does not know yet that the client has what it was sent.
    """

    def __init__(
        self, served: Served, *, path: str = PATH, query: str = "", protocols: tuple[str, ...] = (), **headers: str
    ) -> None:
        self.status = 0
        self.body: Any = None
        self.protocol: str | None = None
        self.closed: tuple[int, str] | None = None
        self.reads = asyncio.Event()
        self.reads.set()
        self.lingers = 0
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._outgoing.put_nowait({"type": "websocket.connect"})
        pairs = {"host": "test", **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "client": ("192.0.2.1", 1),
            "server": ("test", 80),
            "subprotocols": list(protocols),
            "extensions": {"websocket.http.response": {}},
        }
        self.task = asyncio.create_task(served.app(scope, self._outgoing.get, self._send))

    async def _send(self, message: Any) -> None:
        match message["type"]:
            case "websocket.accept":
                self.status, self.protocol = 101, message["subprotocol"]
            case "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.http.response.body":
                self.body = json.loads(message["body"])
            case "websocket.close":
                self.closed = (message["code"], message["reason"])
            case _:
                await self.reads.wait()
                self._incoming.put_nowait(message)
                for _ in range(self.lingers):
                    await asyncio.sleep(0)

    def send(self, kind: str, **fields: Any) -> None:
        self.send_frame(text=json.dumps({"type": kind, **fields}))

    def send_frame(self, **frame: str | bytes) -> None:
        self._outgoing.put_nowait({"type": "websocket.receive", **frame})

    def leave(self) -> None:
        """Close the connection, or lose it."""
        self._outgoing.put_nowait({"type": "websocket.disconnect", "code": 1005})

    async def receive(self) -> Any:
        """The next message, decoded, or the next piece of sound."""
        async with asyncio.timeout(5):
            message = await self._incoming.get()
        return json.loads(message["text"]) if "text" in message else message["bytes"]

    async def until(self, kind: str) -> list[Any]:
        """All messages and sounds up to one of this type."""
        found = [await self.receive()]
        while not (isinstance(found[-1], dict) and found[-1]["type"] == kind):
            found.append(await self.receive())
        return found

    async def end(self) -> tuple[int, str] | None:
        """Wait until the server has done with it."""
        async with asyncio.timeout(5):
            await self.task
        return self.closed

    @property
    def pending(self) -> int:
        """Messages that have been received and not been looked at."""
        return self._incoming.qsize()


@asynccontextmanager
async def connected(served: Served, **how: Any) -> AsyncIterator[SocketClient]:
    """A running client, cut off at the end if the test leaves it running."""
    client = SocketClient(served, **how)
    try:
        yield client
    finally:
        client.task.cancel()
        await asyncio.wait({client.task})


def refusal(message: Any) -> tuple[str, str | None]:
    """Field and code of an error."""
    assert message["type"] == "error", message
    assert set(message["error"]) == {"message", "type", "param", "code"}
    return message["error"]["param"], message["error"]["code"]
