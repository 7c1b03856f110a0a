"""A scripted model to talk to over /v1/realtime, and the client's end of such a socket."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.cluster.messages import AnyEvent, Audio, Delta, Done, Finish, Usage
from app.engines import stubspeech
from app.protocol.errors import ApiError
from tests.routes.serving import ScriptedOrchestrator, ScriptedStream, Served, Step
from tests.routes.sockets import SocketClient, connected

PATH = "/v1/realtime"
RATE = 24_000


class Talking(ScriptedOrchestrator):
    """Plays `scripts` one after the other, then the last one again. `closed_for`: why the streams have been closed."""

    def __init__(self, *scripts: list[Step]) -> None:
        super().__init__()
        self.scripts = list(scripts or [words("Hello ", "there.")])
        self.refusals: list[ApiError] = []
        self.closed_for: list[str] = []
        self.tasks = ["chat"]
        self.inputs = ["text"]

    def speak_aloud(self) -> None:
        """From now on it has a stage that speaks."""
        self.speaks, self.tasks, self.card = True, ["chat", "speech"], stubspeech.CARD

    async def submit(self, *args: Any, **kwargs: Any) -> Any:
        await super().submit(*args, **kwargs)
        if self.refusals:
            raise self.refusals.pop(0)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        stream = Stream(script, self.closed_for)
        self.streams[-1] = stream
        return stream

    def body(self, number: int = -1) -> Any:
        return json.loads(self.submitted[number][2])

    def messages(self, number: int = -1) -> Any:
        return self.body(number)["messages"]


class Stream(ScriptedStream):
    def __init__(self, script: list[Step], closed_for: list[str]) -> None:
        super().__init__(script)
        self._closed_for = closed_for

    async def aclose(self, reason: str = "client_disconnect") -> None:
        await super().aclose(reason)
        self._closed_for.append(reason)


def words(*texts: str, reason: str = "stop") -> list[Step]:
    """An answer in text."""
    end: list[AnyEvent] = [Finish(0, reason), Usage(5, len(texts)), Done()]
    return [*_each(*(Delta(0, text) for text in texts)), end]


def sound(count: int, text: str = "", level: int = 1000) -> Audio:
    """A piece of speech of `count` samples, in base64."""
    data = base64.b64encode(array("h", [level] * count).tobytes())
    return Audio(0, memoryview(data), "pcm", RATE, count, text)


def spoken(*pieces: AnyEvent) -> list[Step]:
    """An answer in text and sound."""
    details = b'{"completion_tokens_details":{"text_tokens":2,"audio_tokens":7}}'
    return [*_each(*pieces), [Finish(0, "stop"), Usage(5, 9, details), Done()]]


def _each(*events: AnyEvent) -> list[Step]:
    return [[event] for event in events]


def silence(seconds: float) -> bytes:
    """Samples of a quiet room: a hum that nobody hears."""
    return array("h", [3, -3] * int(seconds * RATE / 2)).tobytes()


def voice(seconds: float, level: float = 0.1) -> bytes:
    """Samples of something as loud as speech."""
    return array(
        "h", [int(32767 * level * math.sin(position / 20)) for position in range(int(seconds * RATE))]
    ).tobytes()


class Talk:
    """The client's end. It keeps nothing that it has received."""

    def __init__(self, socket: SocketClient) -> None:
        self.socket = socket

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(kind, **fields)

    async def receive(self) -> Any:
        return await self.socket.receive()

    async def until(self, kind: str) -> list[Any]:
        return await self.socket.until(kind)

    async def update(self, **session: Any) -> Any:
        """The session after a change."""
        self.send("session.update", session=session)
        return (await self.until("session.updated"))[-1]["session"]

    async def say(self, text: str, **fields: Any) -> str:
        """Add a message of the user's; its id."""
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content, **fields})
        item_id: str = (await self.until("conversation.item.done"))[-1]["item"]["id"]
        return item_id

    def hear(self, samples: bytes, *, chunk_s: float = 0.1) -> None:
        """Send sound as a microphone does."""
        size = int(chunk_s * RATE) * 2
        for begin in range(0, len(samples), size):
            audio = base64.b64encode(samples[begin : begin + size]).decode()
            self.send("input_audio_buffer.append", audio=audio)

    async def answer(self, **response: Any) -> list[Any]:
        """All events of a response."""
        self.send("response.create", **({"response": response} if response else {}))
        return await self.until("response.done")

    async def refused(self) -> tuple[str | None, str | None]:
        """Field and code of the error that comes next."""
        return refusal(await self.receive())


def refusal(event: Any) -> tuple[str | None, str | None]:
    """Field and code of an error event."""
    assert event["type"] == "error", event
    assert set(event["error"]) == {"type", "code", "message", "param", "event_id"}
    assert event["error"]["message"]
    return event["error"]["param"], event["error"]["code"]


@asynccontextmanager
async def talking(served: Served, **how: Any) -> AsyncIterator[Talk]:
    """A running client whose session has been created."""
    async with connected(served, path=PATH, **how) as socket:
        talk = Talk(socket)
        assert (await talk.receive())["type"] == "session.created"
        yield talk


def kinds(events: list[Any]) -> list[str]:
    """The types of events."""
    return [event["type"] for event in events]


async def soon(condition: asyncio.Event) -> None:
    """Wait for something that has to happen."""
    async with asyncio.timeout(5):
        await condition.wait()
