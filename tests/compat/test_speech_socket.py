"""The demo's voice on a socket: it begins before the text ends, is understood, and is silent when it has to be."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.compat.heard import UNDERSTOOD, error_rate
from tests.servers import Server

SENTENCES = ["The morning is cold and clear.", "We walk along the river to the old bridge.", "Then we go home."]


async def until(socket: ClientConnection, kind: str) -> list[Any]:
    """All messages, decoded, and pieces of sound up to a message of this type."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        async for message in socket:
            found.append(message if isinstance(message, bytes) else json.loads(message))
            if isinstance(found[-1], dict) and found[-1]["type"] == kind:
                break
    return found


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def test_it_is_heard_before_the_text_ends_and_understood(voice: Server) -> None:
    async with connect(f"ws://127.0.0.1:{voice.port}/v1/audio/speech/stream", ping_timeout=None) as socket:
        await send(socket, "session.config", response_format="mp3", voice="heart", seed=1)
        await send(socket, "input.text", text=SENTENCES[0] + " We wa")
        begun = await until(socket, "audio.sentence")
        assert begun[-1]["text"].strip() == SENTENCES[0]
        await send(socket, "input.text", text="lk" + SENTENCES[1].removeprefix("We walk"))
        await send(socket, "input.text", text=" " + SENTENCES[2])
        await send(socket, "input.done")
        rest = await until(socket, "session.done")
        assert (rest[-1]["status"], rest[-1]["total_sentences"]) == ("completed", 3)
        assert rest[-2]["samples"] > rest[-2]["total_bytes"] / 10 > 0
        file = b"".join(message for message in begun + rest if isinstance(message, bytes))
        assert error_rate(SENTENCES, file, "mp3") <= UNDERSTOOD

        await send(socket, "input.text", text=" ".join(SENTENCES * 20))
        await until(socket, "audio.start")
        asked = time.monotonic()
        await send(socket, "input.cancel")
        assert (await until(socket, "session.done"))[-1]["status"] == "cancelled"
        assert time.monotonic() - asked < 1
