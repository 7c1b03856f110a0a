"""The parts of a Granian worker's adoption that can be looked at alone; tests/faults runs whole servers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import os
import signal
import subprocess
import sys

import pytest

from app import signals as stop_signals
from app.granian_worker import GranianSignals
from tests.servers import ROOT


@pytest.fixture(autouse=True)
def no_stop_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test requests must not reach the next one."""
    monkeypatch.setattr(stop_signals, "_requested", False)


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
        with stop_signals.watch_shutdown() as shutdown:
            assert shutdown.requested
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


async def test_granian_is_told_when_nothing_holds_the_stop() -> None:
    """It would cut off WebSockets, which by then have learned of the stop."""
    loop = asyncio.get_running_loop()
    event = GranianSignals(asyncio.Event).set_loop_signals(loop)
    try:
        with stop_signals.hold_stop():
            with stop_signals.hold_stop():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                assert stop_signals.stop_requested()
            assert not event.is_set()
        assert event.is_set()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def test_granian_is_as_app_granian_worker_assumes() -> None:
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


FORKED = """
import multiprocessing, os, signal, sys, time
import app.granian_worker as granian_worker
granian_worker.POLL_S = 0.1

class Server:  # as granian.server.common.AbstractServer
    interrupt_signal = False
    def signal_handler_interrupt(self, *_):
        self.interrupt_signal = True

def worker():
    if sys.argv[1] == "late":  # the handler has run by now
        time.sleep(0.5)
    granian_worker.adopt_granian_worker()
    time.sleep(20)
    os._exit(7)

server = Server()
signal.signal(signal.SIGTERM, server.signal_handler_interrupt)
signal.signal(signal.SIGINT, server.signal_handler_interrupt)
child = multiprocessing.get_context("fork").Process(target=worker, name="granian-worker")
child.start()
if sys.argv[1] == "late":
    time.sleep(0.2)
    child.terminate()
child.join()  # with "lost" all that can be seen of the signal is that we wait
sys.exit(3 if child.exitcode == 7 else 0)
"""


@pytest.mark.parametrize("moment", ["lost", "late"])
def test_signal_before_the_adoption_still_ends_the_worker(moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, moment], cwd=ROOT, timeout=30, check=False)
    assert done.returncode == 0


def test_told_twice_a_worker_ends_whatever_its_threads_do() -> None:
    code = "import app.granian_worker as w; w.AT_ONCE_S = 0.2; w._end_at_once()\nwhile True: sum(range(10**6))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=20, check=False)
    assert done.returncode == -signal.SIGALRM
