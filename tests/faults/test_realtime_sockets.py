"""Realtime sockets of real servers: interruption in every stage, clients that vanish or read nothing, deaths, stops."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from app.engines.stubspeech import ramp
from tests.compat.wire import metric
from tests.faults.talks import LONG, SERVE, SLOW_S, environment, hear, many_talks, say, send, session, sound_of, until
from tests.faults.test_mounts import SERVERS, STARLETTE, host_env
from tests.routes.realtime import voice
from tests.servers import Server, start_server, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(SERVE, environment(tmp_path_factory.mktemp("deploy"))) as server:
        yield server.wait_ready(60)


async def wait_running(server: Server, count: int, limit_s: float) -> None:
    """Until so many requests run in the stages."""
    wait = (lambda: metric(server, "omni_requests_running") == count), limit_s, f"{count} to run"
    await asyncio.to_thread(wait_for, *wait, server=server)


async def test_many_talks_at_once(server: Server) -> None:
    await many_talks(server, 20)
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
