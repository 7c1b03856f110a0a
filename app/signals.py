"""Know that this process has been asked to stop, without taking the signal away from the server that owns it.

Standard library only: a Granian worker imports this before anything heavy, because its first moments are the dangerous
ones (see `adopt_granian_worker`).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

logger = logging.getLogger("app.server")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
ORPHAN_POLL_S = 0.5
ORPHAN_EXIT_S = 5.0
"""How long a worker whose server process was killed may take to end its requests."""

_watchers: list[Shutdown] = []
_chained: dict[signal.Signals, Any] = {}
_granian: GranianSignals | None = None
_parent_watch: threading.Thread | None = None


class Shutdown:
    """The stop request as one event loop sees it.

    `requested` turns true inside the signal handler, so code that blocks the loop sees it too; `event` follows on the
    loop. Get one from `watch_shutdown`.
    """

    def __init__(self) -> None:
        self.requested = False
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def request(self) -> None:
        """Mark the shutdown as requested; safe inside a signal handler and from other threads."""
        self.requested = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.event.set)


@contextmanager
def watch_shutdown() -> Iterator[Shutdown]:
    """Observe SIGTERM and SIGINT while the block runs. The handlers found there are called as before.

    Outside the main thread nothing can be observed; the Shutdown then stays silent until someone calls `request`.
    """
    shutdown = Shutdown()
    _watchers.append(shutdown)
    if threading.current_thread() is threading.main_thread():
        _chain_handlers()
    if _granian is not None and _granian.fired:
        shutdown.request()
    try:
        yield shutdown
    finally:
        _watchers.remove(shutdown)
        if not _watchers and threading.current_thread() is threading.main_thread():
            _restore_handlers()


def _chain_handlers() -> None:
    for signum in STOP_SIGNALS:
        current = signal.getsignal(signum)
        # None: installed by C code, cannot be put back. SIG_IGN: the server does not stop on it.
        if current not in (None, signal.SIG_IGN, _on_signal):
            _chained[signum] = current
            signal.signal(signum, _on_signal)


def _restore_handlers() -> None:
    for signum, previous in _chained.items():
        if signal.getsignal(signum) is _on_signal:
            signal.signal(signum, previous)
    _chained.clear()


def _on_signal(signum: int, frame: FrameType | None) -> None:
    _notify_watchers()
    if _granian is not None:
        _granian.count(signum)
    previous = _chained.get(signal.Signals(signum), signal.SIG_DFL)
    if callable(previous):
        previous(signum, frame)
    elif previous == signal.SIG_DFL:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _notify_watchers() -> None:
    for watcher in tuple(_watchers):
        watcher.request()


class GranianSignals:
    """Stands in for `granian._signals.set_loop_signals` in a worker: the first signal stops it, later ones are dropped.

    Granian's own handler hands every signal to a channel of one place that nothing reads before the worker serves; the
    second signal during the lifespan start-up (Ctrl-C reaches the worker, then the main process sends SIGTERM) blocks
    there for ever, with the interpreter lock held.
    """

    def __init__(self, worker_signal: Callable[[], Any]) -> None:
        self.fired = False
        self._worker_signal = worker_signal
        self._interrupts = 0

    def set_loop_signals(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Install the handlers on `loop`; returns the object that Granian's server waits for."""
        event = self._worker_signal()

        def fire_once() -> None:
            if not self.fired:
                self.fired = True
                event.set()
                _notify_watchers()

        for signum in STOP_SIGNALS:
            loop.add_signal_handler(signum, fire_once)
        return event

    def count(self, signum: int) -> None:
        """A second Ctrl-C means at once. SIGTERM does not count: the main process sends one after every Ctrl-C."""
        if signum == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                os._exit(130)


def in_granian_worker() -> bool:
    """Whether this process is a worker that Granian started."""
    return multiprocessing.current_process().name == "granian-worker"


def adopt_granian_worker() -> None:
    """Make stop signals during the start-up of a Granian worker safe; call it first thing in the worker.

    Granian forks its workers with the main process's Python handlers installed and replaces them only after the
    target is imported: a stop signal in between would be swallowed, and the main process would wait for ever.
    Does nothing outside a Granian worker and when called again.
    """
    global _granian
    if not in_granian_worker() or _granian is not None:
        return
    for signum in STOP_SIGNALS:
        _drop_inherited_handler(signum)
    exit_with_parent()
    try:
        from granian import _signals
    except ImportError:
        return
    _granian = GranianSignals(_signals.WorkerSignal)  # type: ignore[attr-defined] # private, pinned, tested
    _signals.set_loop_signals = _granian.set_loop_signals


def _drop_inherited_handler(signum: signal.Signals) -> None:
    handler = signal.getsignal(signum)
    if getattr(handler, "__name__", "") != "signal_handler_interrupt":
        return
    signal.signal(signum, signal.SIG_DFL)
    # The handler ran already in this process: only our copy of the server object knows.
    if getattr(getattr(handler, "__self__", None), "interrupt_signal", False):
        os._exit(0)


def exit_with_parent() -> None:
    """End this process when the server process that started it dies (kill -9 leaves workers serving the port).

    A thread watches, not a task: a blocked event loop must not keep an orphan alive.
    """
    global _parent_watch
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or _parent_watch is not None:
        return
    _parent_watch = threading.Thread(target=_watch_parent, args=(parent.pid,), name="omni-parent-watch", daemon=True)
    _parent_watch.start()


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(ORPHAN_POLL_S)
    logger.warning("server process %d is gone; stopping worker %d", parent_pid, os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_EXIT_S)
    os._exit(1)
