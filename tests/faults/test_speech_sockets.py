"""Speech sockets of real servers: clients that vanish or read nothing, deaths, stops (user_reports 48 and 122)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.faults.test_mounts import SERVERS, STARLETTE, host_env
from tests.servers import ROOT, Server, start_server, wait_for

SLOW_S = 3
SPEAKS = {"chats": False, "speaks": True, "token_s": 0.05}
ENV = {
    "OMNI_STAGE_OVERRIDES": json.dumps({"0": {"engine_args": SPEAKS}}),
    "OMNI_SLOW_CLIENT_TIMEOUT": str(SLOW_S),
    "OMNI_SHUTDOWN_TIMEOUT": "3",
}
SERVE = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2")
FRAME = 4800
"""Samples that the stub says for two words."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_server(SERVE, ENV) as server:
        yield server.wait_ready(60)


@asynccontextmanager
async def session(server: Server, path: str = "", *, script: dict[str, Any] | None = None, **how: Any) -> AsyncIterator:
    """A configured socket that gets bare samples."""
    address = f"ws://127.0.0.1:{server.port}{path}/v1/audio/speech/stream"
    async with connect(address, **{"open_timeout": 30, **how}) as socket:
        await send(socket, "session.config", response_format="pcm", extra_params={"stub": script or {}})
        assert (await receive(socket))["type"] == "session.configured"
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(20):
        message = await socket.recv()
    return message if isinstance(message, bytes) else json.loads(message)


async def until(socket: ClientConnection, kind: str) -> list[Any]:
    found = [await receive(socket)]
    while not (isinstance(found[-1], dict) and found[-1]["type"] == kind):
        found.append(await receive(socket))
    return found


async def spoken(socket: ClientConnection, text: str) -> array[int]:
    """The samples of one utterance, sent in pieces of a few characters."""
    for start in range(0, len(text), 7):
        await send(socket, "input.text", text=text[start : start + 7])
    await send(socket, "input.done")
    messages = await until(socket, "session.done")
    assert messages[-1]["status"] == "completed", messages[-2:]
    return array("h", b"".join(message for message in messages if isinstance(message, bytes)))


def assert_is_ramp(samples: array[int], words: int) -> None:
    """Nothing is lost, doubled or out of order."""
    assert samples == array("h", (position % 2**15 for position in range((words + 1) // 2 * FRAME)))


def running(server: Server) -> int:
    """Requests that replicas work on."""
    text = server.get("/metrics").text
    return sum(int(float(count)) for count in re.findall(r"^omni_requests_running\{.*\} (\S+)", text, re.MULTILINE))


async def wait_running(server: Server, count: int, limit_s: float) -> None:
    await asyncio.to_thread(wait_for, lambda: running(server) == count, limit_s, f"{count} to run", server=server)


async def test_many_sockets(server: Server) -> None:
    async def one(number: int) -> None:
        async with session(server) as socket:
            for words in (1, 2 + number % 5):
                assert_is_ramp(await spoken(socket, "word " * words), words)

    await asyncio.gather(*map(one, range(60)))
    await wait_running(server, 0, 2)


async def test_pings_are_answered_whatever_goes_on(server: Server) -> None:
    async def other() -> None:
        async with session(server, script={"token_s": 0.01}) as socket:
            await spoken(socket, "word " * 400)

    async with session(server, ping_interval=0.5, ping_timeout=5) as socket:
        async with asyncio.TaskGroup() as others:
            for _ in range(4):
                others.create_task(other())
            assert_is_ramp(await spoken(socket, "word " * 100), 100)  # 2.5 s
        async with asyncio.timeout(5):
            await (await socket.ping())


async def test_cancel_is_heard_within_a_second(server: Server) -> None:
    async with session(server) as socket:
        await send(socket, "input.text", text="word " * 2000)
        await until(socket, "audio.start")
        began = time.monotonic()
        await send(socket, "input.cancel")
        assert (await until(socket, "session.done"))[-1]["status"] == "cancelled"
        await wait_running(server, 0, 1)
        assert time.monotonic() - began < 1
        assert_is_ramp(await spoken(socket, "still here"), 2)


async def test_a_client_that_vanishes_stops_the_work(server: Server) -> None:
    async with session(server) as socket:
        await send(socket, "input.text", text="word " * 2000)
        await until(socket, "audio.start")
        await wait_running(server, 1, 5)
        socket.transport.abort()
        await wait_running(server, 0, 1)


async def test_a_client_that_reads_nothing_costs_little_and_is_given_up(server: Server) -> None:
    before = memory(server)
    sockets = []
    for _ in range(8):
        how: dict[str, Any] = {"max_queue": 1, "ping_interval": None}
        context = session(server, script={"token_s": 0, "tokens": 100_000}, **how)
        socket = await context.__aenter__()
        socket.transport.pause_reading()
        await send(socket, "input.text", text="go on")
        sockets.append(socket)
    async with session(server) as reading:
        assert_is_ramp(await spoken(reading, "word " * 50), 50)
    assert memory(server) - before < 8 * (16 << 20)
    await wait_running(server, 0, SLOW_S + 10)
    for socket in sockets:
        socket.transport.abort()


def memory(server: Server) -> int:
    """Bytes that the API workers and the replica have to themselves."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in [*server.workers, *server.replicas])


def test_the_example_of_the_page(server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "speech_websocket.md").read_text().replace("127.0.0.1:8091", f"127.0.0.1:{server.port}")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, timeout=60, check=True)
    file = (tmp_path / "morning.wav").read_bytes()
    assert file.startswith(b"RIFF")
    assert_is_ramp(array("h", file[44:]), 5)


async def test_a_replica_that_dies_is_told_and_the_socket_stays(server: Server) -> None:
    async with session(server) as socket:
        await send(socket, "input.text", text="word " * 2000)
        await until(socket, "audio.start")
        os.kill(server.replicas[0], signal.SIGKILL)
        error = (await until(socket, "error"))[-1]
        assert error["error"]["code"] == "replica_lost"
        assert (await until(socket, "session.done"))[-1]["status"] == "failed"
        await send(socket, "input.done")
        await asyncio.to_thread(wait_for, server.answers, 20, "the new replica", server=server)
        assert_is_ramp(await spoken(socket, "word " * 3), 3)


async def test_a_stop_lets_an_utterance_finish_and_closes_what_is_idle() -> None:
    with start_server(SERVE, ENV) as server:
        server.wait_ready(60)
        async with session(server) as idle, session(server) as busy, session(server) as endless:
            await send(endless, "input.text", text="word " * 2000)
            await send(busy, "input.text", text="word " * 40)  # a second
            await send(busy, "input.done")
            await until(busy, "audio.start")
            await until(endless, "audio.start")
            server.terminate()
            assert (await until(busy, "session.done"))[-1]["status"] == "completed"
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


HOST = STARLETTE.replace('model="stub"', 'model="stub", api_key=["secret"]')


@pytest.mark.parametrize("server_name", SERVERS)
async def test_sockets_of_a_mounted_application(server_name: str, tmp_path: Path) -> None:
    with start_server(SERVERS[server_name], ENV | host_env(tmp_path, HOST), cwd=tmp_path) as server:
        wait_for(lambda: server.answers("/a/omni/readyz"), 60, "the host", server=server)
        with pytest.raises(InvalidStatus) as refused:
            async with session(server, "/a/omni"):
                pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{server.port}/a/omni/v1/nothing"):
                pass
        assert refused.value.response.status_code == 404
        async with session(server, "/a/omni", additional_headers={"Authorization": "Bearer secret"}) as socket:
            assert_is_ramp(await spoken(socket, "word " * 3), 3)
            server.terminate()
            assert await closing(socket) in (1001, 1012)  # uvicorn may be the first, and says it in its own way
        assert await asyncio.to_thread(server.wait) in (0, -signal.SIGTERM)
