"""What a Granian worker needs so that a stop, at whatever moment, ends it. Standard library only, written for 2.8.9.

A worker imports this before anything heavy, because its first moments are the dangerous ones. Linux and fork; with
another start method or another Granian the parts that do not apply do nothing.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.signals import STOP_SIGNALS, on_repeated_signal, request_shutdown, stop_requested, tell_server

logger = logging.getLogger("app.server")

POLL_S = 0.5
ORPHAN_EXIT_S = 5.0
"""How long a worker whose server process was killed may take to end its requests."""
INTERRUPT_GRACE_S = 1.0
AT_ONCE_S = 1.0
"""How long a worker that was told twice to stop has to tell its clients."""
EARLY_S = 5.0
"""A stop signal can be lost only in the first instants of a worker; so long after them the search for one ends."""

_adopted = False
_parent_watch: threading.Thread | None = None


def in_granian_worker() -> bool:
    """Whether this process is a worker that Granian started."""
    return multiprocessing.current_process().name == "granian-worker"


def adopt_granian_worker() -> None:
    """Make stop signals during the start-up of a Granian worker safe; call it first thing in the worker.

    Granian forks its workers with the main process's Python handlers installed and replaces them only after the
    target is imported: a stop signal in between would be swallowed, and the main process would wait for ever.
    Does nothing outside a Granian worker and when called again.
    """
    global _adopted
    if _adopted or not in_granian_worker():
        return
    _adopted = True
    _drop_inherited_handlers()
    exit_with_parent()
    try:
        from granian import _signals
    except ImportError:
        return
    signals = GranianSignals(_signals.WorkerSignal)  # type: ignore[attr-defined] # private, pinned, tested
    _signals.set_loop_signals = signals.set_loop_signals
    on_repeated_signal(_end_at_once)


def _end_at_once() -> None:
    """Have the kernel end this process shortly, whatever its threads and its event loop are doing."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, AT_ONCE_S)


def _drop_inherited_handlers() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if getattr(handler, "__name__", "") != "signal_handler_interrupt":
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C reaches the main process too, which sends SIGTERM. A worker that goes before that counts as crashed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The handler ran already in this process: only our copy of the server object knows.
    if getattr(getattr(handler, "__self__", None), "interrupt_signal", False):
        time.sleep(INTERRUPT_GRACE_S)
        os._exit(0)


class GranianSignals:
    """Stands in for `granian._signals.set_loop_signals` in a worker: the first signal stops it, later ones are dropped.

    Granian's own handler hands every signal to a channel of one place that nothing reads before the worker serves; the
    second signal during the lifespan start-up (Ctrl-C reaches the worker, then the main process sends SIGTERM) blocks
    there for ever, with the interpreter lock held.
    """

    def __init__(self, worker_signal: Callable[[], Any]) -> None:
        self._worker_signal = worker_signal
        self._fired = False

    def set_loop_signals(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Install the handlers on `loop`; returns the object that Granian's server waits for."""
        event = self._worker_signal()

        def fire_once() -> None:
            if not self._fired:
                self._fired = True
                request_shutdown()
                tell_server(event.set)

        for signum in STOP_SIGNALS:
            loop.add_signal_handler(signum, fire_once)
        return event


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
    lost_signal = LostSignal(parent_pid) if in_granian_worker() else None
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
        if lost_signal is not None and lost_signal.search_ended():
            if lost_signal.found and not stop_requested():
                os.kill(os.getpid(), signal.SIGTERM)
            lost_signal = None
    logger.warning("server process %d is gone; stopping worker %d", parent_pid, os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_EXIT_S)
    os._exit(1)


class LostSignal:
    """Notices a SIGTERM that never arrived: CPython forgets what a process receives right after fork.

    The main process then waits for this worker for ever. That can be seen from here: its main thread sits in a wait
    for a child ever since we started, and of its children we are the oldest, so that it is not another's turn (in a
    rolling restart it waits for a worker older than the new one).
    """

    def __init__(self, parent_pid: int) -> None:
        self.found = False
        self._parent = Path(f"/proc/{parent_pid}/task/{parent_pid}")
        self._began = time.monotonic()
        self._in_a_row = 0

    def search_ended(self) -> bool:
        """Look once; True when the signal is known to be lost, or not to be."""
        waiting, oldest = self._parent_waits(), self._is_oldest()
        self._in_a_row = self._in_a_row + 1 if waiting and oldest else 0
        self.found = self._in_a_row >= 2
        return self.found or (not waiting and time.monotonic() - self._began > EARLY_S)

    def _parent_waits(self) -> bool:
        try:
            return (self._parent / "wchan").read_text() == "do_wait"
        except OSError:
            return False

    def _is_oldest(self) -> bool:
        try:
            children = (self._parent / "children").read_text().split()
        except OSError:
            return False
        return bool(children) and children[0] == str(os.getpid())
