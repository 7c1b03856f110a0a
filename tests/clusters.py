"""A real cluster in one test: registry, supervised stub replicas, orchestrator; and bare peers for its sockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket as stdlib_socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from app import __version__
from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.pull import Puller
from app.cluster.refs import RefStore
from app.cluster.registry import Registry
from app.cluster.supervisor import Supervisor
from app.cluster.tensors import Source
from app.cluster.transport import Channel, Frames, dealer, new_context
from app.engines.spec import ReplicaSpec
from app.engines.tensors import Exchange
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.request import RequestStream
from app.settings.schema import MasterConfig, Settings, StageConfig, stage_digest

T = TypeVar("T", bound=m.Message)
TOKEN = "a token of the tests"
_UNUSED = new_context()


def settings(replicas: int = 1, **engine_args: Any) -> Settings:
    """A pipeline of one stub stage, with short times."""
    stage = StageConfig(
        stage_id=0,
        name="stub",
        kind="stub",
        model="stub",
        engine_args=engine_args,
        num_replicas=replicas,
        devices="cpu",
    )
    master = MasterConfig(stage_init_timeout=20, heartbeat_s=0.2, shutdown_timeout=2)
    return Settings(model="stub", served_model_names=["stub"], pipeline="stub", stages=[stage], master=master)


def with_tcp(config: Settings, token: str = TOKEN) -> Settings:
    """The same with a tcp registry for headless replicas."""
    config.master.port, config.master.token = free_port(), token
    return config


def replica_spec(path: Path, config: Settings, replica_id: int = 0) -> ReplicaSpec:
    """What the supervisor would hand to a local replica of stage 0."""
    return ReplicaSpec(
        stage=config.stages[0],
        replica_id=replica_id,
        registry=f"ipc://{path}/registry.sock",
        bind=f"ipc://{path}/r0-{replica_id}.sock",
        token=config.master.token,
        served_model_names=config.served_model_names,
        shutdown_timeout=config.master.shutdown_timeout,
        slow_client_timeout=config.server.slow_client_timeout_s,
        parent_pid=os.getpid(),
    )


@asynccontextmanager
async def running_registry(path: Path, config: Settings) -> AsyncIterator[Registry]:
    registry = Registry(config, f"ipc://{path}/registry.sock")
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


@asynccontextmanager
async def cluster(path: Path, config: Settings) -> AsyncIterator[tuple[Orchestrator, Supervisor]]:
    async with running_registry(path, config) as registry:
        supervisor = Supervisor(config, registry, path)
        orchestrator = Orchestrator(config, f"ipc://{path}/registry.sock")
        try:
            await supervisor.start(lambda line: None)
            await orchestrator.start()
            assert await orchestrator.wait_ready(20)
            yield orchestrator, supervisor
        finally:
            await orchestrator.stop()
            await supervisor.stop(grace_s=3)


class Peer:
    """A bare DEALER that keeps what it hears, to play a replica, an API worker or an intruder."""

    def __init__(self, address: str, token: str = "", identity: bytes = b"") -> None:
        self._context = new_context()
        self.heard: list[m.Message] = []
        self.frames: list[Frames] = []
        self._arrived = asyncio.Event()
        self.socket = dealer(self._context, address, identity or os.urandom(8), Access(token))
        self._channel = Channel(self.socket, self._on_message)

    def _on_message(self, frames: Frames) -> None:
        first = bytes(frames[0].buffer)
        try:
            message: m.Message = m.decode_registry(first)
        except Exception:  # noqa: BLE001 - then it is the other channel's
            message = m.decode_data(first)
        self.heard.append(message)
        self.frames.append(frames)
        self._arrived.set()

    def send(self, message: m.Message, *bulk: bytes) -> None:
        self._channel.send([m.encode(message), *bulk])

    def send_raw(self, *frames: bytes) -> None:
        self._channel.send(frames)

    async def get(self, kind: type[T], limit_s: float = 20, where: Callable[[T], bool] = lambda _: True) -> T:
        """The next message of that class for which `where` holds; it and what came before it is forgotten."""
        async with asyncio.timeout(limit_s):
            while True:
                for position, message in enumerate(self.heard):
                    if isinstance(message, kind) and where(message):
                        del self.heard[: position + 1]
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    def close(self) -> None:
        self._channel.close()
        self._context.term()


@asynccontextmanager
async def peer(address: str, token: str = "", identity: bytes = b"") -> AsyncIterator[Peer]:
    connected = Peer(address, token, identity)
    try:
        yield connected
    finally:
        connected.close()


def registration(config: Settings, **changes: Any) -> m.Register:
    """What a replica of stage 0 that fits sends; `changes` make it one that does not."""
    stage = config.stages[0]
    fields: dict[str, Any] = {
        "protocol": m.PROTOCOL,
        "version": __version__,
        "model": stage.model,
        "stage_id": stage.stage_id,
        "replica_id": 0,
        "config_digest": stage_digest(stage),
        "address": "tcp://127.0.0.1:9",
        "host": "somewhere",
        "pid": os.getpid(),
    }
    return m.Register(**{**fields, **changes})


async def eventually(condition: Callable[[], bool], limit_s: float = 20) -> None:
    """Wait until `condition` holds; TimeoutError after `limit_s` seconds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.01)


def exchange(refs: RefStore | None = None) -> Exchange:
    """What a replica hands tensors over with; it pulls from nobody."""
    return Exchange(RefStore(1 << 30) if refs is None else refs, Source("stub", "here", ""), Puller(_UNUSED, Access()))


def held_refs(pid: int) -> list[str]:
    """The names of what a process holds for others."""
    links = []
    with suppress(FileNotFoundError):  # the process has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(entry))
    return [link for link in links if link.startswith("/memfd:omni-")]


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_gone(pid: int, limit_s: float = 20) -> None:
    """Block until the process has ended; fails after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while alive(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)


def free_port() -> int:
    with stdlib_socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def read(stream: RequestStream) -> list[m.AnyEvent]:
    return [event async for batch in stream for event in batch]


def text_of(events: list[m.AnyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, m.Delta))


def body(text: str = "", **script: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "stub": script}).encode()
