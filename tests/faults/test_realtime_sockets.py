"""Realtime sockets of real servers: interruption in every stage, clients that vanish or read nothing, deaths, stops."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from app.engines.stubspeech import ramp
from tests.compat.wire import metric
from tests.faults.test_mounts import SERVERS, STARLETTE, host_env
from tests.routes.realtime import silence, voice
from tests.servers import Server, start_server, wait_for

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(SERVE, environment(tmp_path_factory.mktemp("deploy"))) as server:
        yield server.wait_ready(60)


@asynccontextmanager
async def session(server: Server, path: str = "", **how: Any) -> AsyncIterator[ClientConnection]:
    address = f"ws://127.0.0.1:{server.port}{path}/v1/realtime"
    async with connect(address, **{"open_timeout": 30, **how}) as socket:
        await until(socket, "session.created")
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def until(socket: ClientConnection, kind: str) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(20):
        while not found or found[-1]["type"] != kind:
            found.append(json.loads(await socket.recv()))
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


async def wait_running(server: Server, count: int, limit_s: float) -> None:
    """Until so many requests run in the stages."""
    wait = (lambda: metric(server, "omni_requests_running") == count), limit_s, f"{count} to run"
    await asyncio.to_thread(wait_for, *wait, server=server)


async def test_many_talks_at_once(server: Server) -> None:
    """Each is asked, interrupted by speech, and answered again; nothing of one is heard in another."""

    async def one(number: int) -> None:
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

    await asyncio.gather(*map(one, range(20)))
    await wait_running(server, 0, 2)


async def test_speech_stops_every_stage_within_a_second(server: Server) -> None:
    async with session(server) as socket:
        await say(socket, LONG)
        await until(socket, "response.output_audio.delta")
        await wait_running(server, 1, 5)
        began = time.monotonic()
        await hear(socket, voice(0.2))
        done = (await until(socket, "response.done"))[-1]["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        await asyncio.to_thread(wait_for, lambda: all_idle(server), 1, "the stages to be idle", server=server)
        assert time.monotonic() - began < 2


def all_idle(server: Server) -> bool:
    """No replica has anything to do."""
    return metric(server, "omni_requests_running") == 0 and server.get("/load").json() == {"server_load": 0}


async def test_a_client_that_vanishes_stops_the_work(server: Server) -> None:
    async with session(server) as socket:
        await say(socket, LONG)
        await until(socket, "response.output_audio.delta")
        await wait_running(server, 1, 5)
        socket.transport.abort()
        await wait_running(server, 0, 1)


async def test_clients_that_read_nothing_or_send_too_much_cost_little(server: Server) -> None:
    before = memory(server)
    sockets = []
    for _ in range(4):
        context = session(server, max_queue=1, ping_interval=None)
        socket = await context.__aenter__()
        await say(socket, LONG)
        await until(socket, "response.output_audio.delta")
        socket.transport.pause_reading()
        sockets.append(socket)
    async with session(server) as flooding:
        await send(flooding, "session.update", session={"turn_detection": None})
        audio = base64.b64encode(voice(10)).decode()
        for _ in range(60):  # 10 minutes of sound, in 12 items and more
            await send(flooding, "input_audio_buffer.append", audio=audio)
            await send(flooding, "input_audio_buffer.commit")
        await send(flooding, "session.update", session={})
        events = await until(flooding, "conversation.item.deleted")
        assert events
        assert memory(server) - before < (4 * 16 + 64) << 20
    await wait_running(server, 0, SLOW_S + 15)
    for socket in sockets:
        socket.transport.abort()


def memory(server: Server) -> int:
    """Bytes that the API workers have to themselves."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in server.workers)


async def test_a_replica_that_dies_fails_its_response_and_the_socket_stays(server: Server) -> None:
    async with session(server) as socket:
        await say(socket, LONG)
        await until(socket, "response.output_audio.delta")
        for pid in server.replicas:
            os.kill(pid, signal.SIGKILL)
        done = (await until(socket, "response.done"))[-1]["response"]
        assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "replica_lost")
        await asyncio.to_thread(wait_for, server.answers, 20, "the new replicas", server=server)
        await say(socket, "two words")
        assert sound_of(await until(socket, "response.done")) == ramp(0, 4800)


BEARER = {"Authorization": "Bearer secret"}
PROTOCOLS = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret")]


async def test_keys_of_every_kind_and_a_stop(tmp_path: Path) -> None:
    """What has begun is finished, what is idle is closed, as long as there is time (user_reports 48 and 128)."""
    with start_server(SERVE, environment(tmp_path) | {"OMNI_API_KEY": "secret"}) as server:
        server.wait_ready(60)
        for query, headers, status in (
            ("", None, 401),
            ("?api_key=secret", None, 401),
            ("?model=stub", {"Authorization": "Bearer wrong"}, 401),
            ("?model=gpt-realtime", BEARER, 404),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://127.0.0.1:{server.port}/v1/realtime{query}", additional_headers=headers)
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body or b"")["error"]["message"]
        async with (
            session(server, additional_headers=BEARER) as idle,
            session(server, additional_headers={"X-Api-Key": "secret"}) as busy,
            session(server, subprotocols=PROTOCOLS) as endless,
        ):
            assert endless.subprotocol == "realtime"
            await say(endless, LONG)
            await say(busy, "word " * 60)  # a second
            await until(busy, "response.output_audio.delta")
            await until(endless, "response.output_audio.delta")
            server.terminate()
            assert (await until(busy, "response.done"))[-1]["response"]["status"] == "completed"
            assert [await closing(socket) for socket in (idle, busy)] == [1001, 1001]
            assert (await until(endless, "error"))[-1]["error"]["code"] == "shutting_down"
            assert await closing(endless) == 1001
        assert await asyncio.to_thread(server.wait) == 0
        server.assert_nothing_left()


async def closing(socket: ClientConnection) -> int | None:
    """The code that the server closes the socket with."""
    with pytest.raises(ConnectionClosed) as caught:
        await until(socket, "nothing of this type")
    return caught.value.rcvd.code if caught.value.rcvd else None


async def test_a_mounted_application(tmp_path: Path) -> None:
    environ = host_env(tmp_path, STARLETTE)
    with start_server(next(iter(SERVERS.values())), environ, cwd=tmp_path) as server:
        wait_for(lambda: server.answers("/a/omni/readyz"), 60, "the host", server=server)
        async with session(server, "/a/omni") as socket:
            await say(socket, "two words")
            done = (await until(socket, "response.done"))[-1]["response"]
            assert done["output"][0]["content"] == [{"type": "output_text", "text": "two words "}]
