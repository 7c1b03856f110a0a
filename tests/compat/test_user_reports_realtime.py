"""What users report of realtime sockets, against a whole server. Numbers are those of the report that a test plays.

The rest of them: tests/faults/test_realtime_sockets.py (48, 128), tests/routes/test_realtime_life.py (123).
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.compat.wire import CHAT, metric
from tests.routes.realtime import silence, voice
from tests.servers import Server, wait_for

LIMIT_S = 30.0


def url(server: Server, query: str = "") -> str:
    return f"ws://127.0.0.1:{server.port}/v1/realtime{query}"


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def until(socket: ClientConnection, kind: str) -> list[Any]:
    """All events up to one of this type."""
    found: list[Any] = []
    async with asyncio.timeout(LIMIT_S):
        while not found or found[-1]["type"] != kind:
            found.append(json.loads(await socket.recv()))
    return found


async def say(socket: ClientConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await send(socket, "conversation.item.create", item={"type": "message", "role": "user", "content": content})


async def test_122_a_busy_server_answers_pings(speaking_chats: Server) -> None:
    """Beside a flood of long answers, and long pieces of sound on the socket itself."""
    async with (
        connect(url(speaking_chats), ping_interval=0.5, ping_timeout=2) as socket,
        httpx.AsyncClient(timeout=LIMIT_S) as client,
    ):
        message = {"role": "user", "content": "x"}
        body = {"messages": [message], "stream": True, "stub": {"tokens": 5000}}
        flood = [asyncio.create_task(client.post(speaking_chats.url + CHAT, json=body)) for _ in range(20)]
        audio = base64.b64encode(silence(20)).decode()
        await send(socket, "session.update", session={"turn_detection": {"type": "server_vad"}})
        for _ in range(20):
            await send(socket, "input_audio_buffer.append", audio=audio)
        assert {answer.status_code for answer in await asyncio.gather(*flood)} == {200}
        await send(socket, "input_audio_buffer.clear")
        await until(socket, "input_audio_buffer.cleared")


async def test_125_turns_that_are_empty_or_silent(speaking_chats: Server) -> None:
    async with connect(url(speaking_chats)) as socket:
        await until(socket, "session.created")
        await send(socket, "session.update", session={"turn_detection": None, "modalities": ["text"]})
        codes = []
        for sound in (silence(0.5), voice(0.5), b"", b""):
            if sound:
                await send(socket, "input_audio_buffer.append", audio=base64.b64encode(sound).decode())
            await send(socket, "input_audio_buffer.commit")
        await send(socket, "response.create")
        events = await until(socket, "response.done")
        codes = [event["error"]["code"] for event in events if event["type"] == "error"]
        assert codes == ["input_audio_buffer_commit_empty"] * 2
        assert [event["type"] for event in events].count("input_audio_buffer.committed") == 2
        assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("politely", [True, False])
async def test_127_unknown_events_and_both_ways_to_leave(speaking_chats: Server, politely: bool) -> None:
    async with connect(url(speaking_chats)) as socket:
        await until(socket, "session.created")
        await send(socket, "no.such.event", event_id="mine")
        error = (await until(socket, "error"))[-1]["error"]
        assert (error["code"], error["event_id"]) == ("unknown_event", "mine")
        await say(socket, "word " * 5000)
        await send(socket, "response.create")
        await until(socket, "response.output_audio_transcript.delta")
        if politely:
            await socket.close()
        else:
            socket.transport.abort()
    await asyncio.to_thread(wait_for, lambda: metric(speaking_chats, "omni_requests_running") == 0, 5, "the end of it")
