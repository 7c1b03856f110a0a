"""Stop signals are seen, and are left to whoever handled them before."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.signals import GranianSignals, watch_shutdown
from tests.servers import ROOT


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The signals that the handler which was there before us has got."""
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    yield received
    signal.signal(signal.SIGTERM, previous)


async def test_signal_is_observed_and_handed_on(seen: list[int]) -> None:
    with watch_shutdown() as shutdown:
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.requested
        await asyncio.wait_for(shutdown.event.wait(), 1)
    assert seen == [signal.SIGTERM]


async def test_all_watchers_learn_of_it_and_the_handler_is_put_back_last(seen: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with watch_shutdown() as outer:
        with watch_shutdown() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not before
        assert outer.requested
        assert inner.requested
    assert signal.getsignal(signal.SIGTERM) is before
    assert seen == [signal.SIGTERM]


async def test_handler_of_the_event_loop_still_runs() -> None:
    loop, handled = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, handled.set)
    try:
        with watch_shutdown() as shutdown:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(handled.wait(), 1)
            assert shutdown.event.is_set()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def test_without_another_handler_the_signal_still_ends_the_process() -> None:
    code = """
import asyncio, os, signal
from app.signals import watch_shutdown
async def main():
    with watch_shutdown():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=20, check=False)
    assert done.returncode == -signal.SIGTERM


async def test_granian_gets_the_first_signal_only() -> None:
    class WorkerSignal:
        times = 0

        def set(self) -> None:
            self.times += 1

    loop = asyncio.get_running_loop()
    signals = GranianSignals(WorkerSignal)
    event = signals.set_loop_signals(loop)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert event.times == 1
        assert signals.fired
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def test_granian_is_as_app_signals_assumes() -> None:
    """If this fails after an update of Granian, read `GranianSignals` and `adopt_granian_worker` again."""
    version = tuple(int(part) for part in importlib.metadata.version("granian").split(".")[:3])
    assert (2, 8, 9) <= version < (2, 9), "pyproject.toml pins granian>=2.8.9,<2.9"
    from granian import _signals
    from granian.server.common import AbstractServer
    from granian.server.mp import MPServer

    assert hasattr(_signals, "WorkerSignal"), "granian._signals.WorkerSignal is gone"
    assert hasattr(_signals, "set_loop_signals"), "granian._signals.set_loop_signals is gone"
    worker = inspect.getsource(inspect.unwrap(MPServer._spawn_asgi_lifespan_worker))
    assert "from granian._signals import set_loop_signals" in worker, "set_loop_signals is not looked up in the worker"
    assert "self.interrupt_signal = True" in inspect.getsource(AbstractServer.signal_handler_interrupt)
