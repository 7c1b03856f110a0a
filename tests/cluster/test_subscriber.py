"""An API worker's line to a master that is a real process, dies and is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.subscriber import Subscriber
from app.cluster.transport import new_context
from tests.clusters import eventually, peer, registration, running_registry, settings

ROOT = Path(__file__).parents[2]
MASTER = """
import asyncio, sys, msgspec
from app.cluster.registry import Registry
from app.settings.schema import Settings

async def main():
    registry = Registry(msgspec.json.decode(sys.argv[1], type=Settings), sys.argv[2])
    await registry.start()
    print("listening", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


class Worker:
    def __init__(self, path: Path) -> None:
        self.context = new_context()
        self.memberships: list[m.Membership] = []
        self.lost: list[int] = []
        self.subscriber = Subscriber(
            self.context,
            f"ipc://{path}/registry.sock",
            Access(),
            "me",
            self.memberships.append,
            lambda: self.lost.append(1),
        )


@asynccontextmanager
async def worker(path: Path) -> AsyncIterator[Worker]:
    one = Worker(path)
    one.subscriber.connect()
    try:
        yield one
    finally:
        one.subscriber.close()
        one.context.term()


@asynccontextmanager
async def master(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MASTER, msgspec.json.encode(settings()), f"ipc://{path}/registry.sock",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"listening\n"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_hears_the_state_at_once_and_every_change(tmp_path: Path) -> None:
    config = settings()
    config.master.heartbeat_s = 30
    async with running_registry(tmp_path, config), worker(tmp_path) as one:
        await eventually(lambda: len(one.memberships) == 1)
        assert one.memberships[0].replicas == []
        assert one.memberships[0].master_pid == os.getpid()
        async with peer(f"ipc://{tmp_path}/registry.sock") as replica:
            replica.send(registration(config))
            await eventually(lambda: len(one.memberships[-1].replicas) == 1)
        assert one.lost == []


async def test_a_worker_that_comes_before_its_master_hears_from_it(tmp_path: Path) -> None:
    async with worker(tmp_path) as one:
        await asyncio.sleep(0.2)
        assert one.memberships == []
        async with running_registry(tmp_path, settings()):
            await eventually(lambda: len(one.memberships) > 0)


async def test_the_death_of_the_master_is_told_once_and_its_successor_is_heard(tmp_path: Path) -> None:
    async with worker(tmp_path) as one:
        async with master(tmp_path) as first:
            await eventually(lambda: len(one.memberships) > 0)
            first.kill()
            await eventually(lambda: one.lost == [1])
        async with master(tmp_path) as second:
            one.memberships.clear()
            one.subscriber.connect()
            await eventually(lambda: len(one.memberships) > 0)
            assert one.memberships[0].master_pid == second.pid
            second.kill()
            await eventually(lambda: one.lost == [1, 1])


async def test_a_closed_one_hears_nothing_and_leaves_no_descriptor(tmp_path: Path) -> None:
    async with master(tmp_path) as process:
        before = len(os.listdir("/proc/self/fd"))
        async with worker(tmp_path) as one:
            await eventually(lambda: len(one.memberships) > 0)
            one.subscriber.close()
            one.memberships.clear()
            process.kill()
            await asyncio.sleep(0.3)
            assert (one.memberships, one.lost) == ([], [])
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_refusal_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with running_registry(tmp_path, settings()):
        with monkeypatch.context() as other:
            other.setattr(m, "PROTOCOL", 99)
            one = Worker(tmp_path)
            one.subscriber.connect()
        await eventually(lambda: "protocol" in caplog.text)
        one.subscriber.close()
        one.context.term()
    assert "the master refused this API worker" in caplog.text
