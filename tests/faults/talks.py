"""Talks on realtime sockets, for tests and the soak: a pipeline of stubs that hears and speaks, and its client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from app.engines.stubspeech import ramp
from tests.routes.realtime import silence, voice
from tests.servers import Server

SLOW_S = 3
DEPLOY = """\
pipeline: stub
stages:
  - {stage_id: 0, name: text, kind: stub, engine_args: {hears: true, token_s: 0.01}}
  - stage_id: 1
    name: speech
    kind: stub
    outputs: [audio]
    sources: [text]
    engine_args: {chats: false, speaks: true, token_s: 0.02}
"""
SERVE = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2")
LONG = "word " * 5000


def environment(directory: Path) -> dict[str, str]:
    deploy = directory / "talking.yaml"
    deploy.write_text(DEPLOY)
    limits = {"OMNI_SLOW_CLIENT_TIMEOUT": str(SLOW_S), "OMNI_SHUTDOWN_TIMEOUT": "3"}
    return {"OMNI_DEPLOY_CONFIG": str(deploy), **limits}


@asynccontextmanager
async def session(server: Server, path: str = "", **how: Any) -> AsyncIterator[ClientConnection]:
    address = f"ws://127.0.0.1:{server.port}{path}/v1/realtime"
    async with connect(address, **{"open_timeout": 30, **how}) as socket:
        await until(socket, "session.created")
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def until(socket: ClientConnection, *kinds: str) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while not found or found[-1]["type"] not in kinds:
            found.append(json.loads(await socket.recv()))
            assert "error" in kinds or found[-1]["type"] != "error", found[-1]
    return found


async def say(socket: ClientConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await send(socket, "conversation.item.create", item={"type": "message", "role": "user", "content": content})
    await send(socket, "response.create")


async def hear(socket: ClientConnection, samples: bytes) -> None:
    for begin in range(0, len(samples), 9600):
        audio = base64.b64encode(samples[begin : begin + 9600]).decode()
        await send(socket, "input_audio_buffer.append", audio=audio)


def sound_of(events: list[Any]) -> bytes:
    return b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta")


async def many_talks(server: Server, count: int) -> None:
    """Each is asked, interrupted by speech, and answered again; nothing of one is heard in another."""
    await asyncio.gather(*(_talk(server, number) for number in range(count)))


async def _talk(server: Server, number: int) -> None:
    async with session(server) as socket:
        words = 2 + number % 5
        await say(socket, "word " * words)
        events = await until(socket, "response.done")
        assert sound_of(events) == ramp(0, (words + 1) // 2 * 4800)
        await say(socket, LONG)
        await until(socket, "response.output_audio.delta")
        await hear(socket, voice(0.3))
        assert (await until(socket, "response.done"))[-1]["response"]["status"] == "cancelled"
        await hear(socket, silence(1))
        assert (await until(socket, "response.done"))[-1]["response"]["status"] == "completed"
