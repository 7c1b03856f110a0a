"""Stop signals are seen, and are left to whoever handled them before."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.signals import watch_shutdown
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


@pytest.mark.parametrize(
    ("signals", "pause_s", "at_once"),
    [
        ((signal.SIGINT, signal.SIGTERM), 1.1, False),
        ((signal.SIGINT, signal.SIGINT), 0.1, True),
        ((signal.SIGTERM, signal.SIGTERM), 0.1, False),
        ((signal.SIGTERM, signal.SIGTERM), 1.1, True),
    ],
    ids=["Ctrl-C and the main process", "Ctrl-C twice", "the service manager and the main process", "SIGTERM twice"],
)
async def test_what_means_at_once(
    seen: list[int], signals: tuple[signal.Signals, ...], pause_s: float, at_once: bool
) -> None:
    interrupted = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with watch_shutdown() as shutdown:
            for signum in signals:
                os.kill(os.getpid(), signum)
                await asyncio.sleep(pause_s)
            assert (shutdown.event.is_set(), shutdown.at_once.is_set()) == (True, at_once)
    finally:
        signal.signal(signal.SIGINT, interrupted)


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
