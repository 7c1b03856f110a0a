"""Know that this process has been asked to stop, without taking the signal away from the server that owns it.

Standard library only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
ONE_REQUEST_S = 1.0
"""SIGTERMs within this time are one request: systemd sends one to every process of a service, and the main process of
a server, which gets one too, passes it on to its workers."""

_watchers: list[Shutdown] = []
_chained: dict[signal.Signals, Any] = {}
_requested = False
_received: dict[int, float] = {}
_on_repetition: list[Callable[[], None]] = []
_holds = 0
_held_back: list[Callable[[], None]] = []


class Shutdown:
    """The stop request as one event loop sees it.

    `requested` turns true inside the signal handler, so code that blocks the loop sees it too; `event` follows on the
    loop, `at_once` when the same signal comes again. Get one from `watch_shutdown`.
    """

    def __init__(self) -> None:
        self.requested = False
        self.event = asyncio.Event()
        self.at_once = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def request(self, *, at_once: bool = False) -> None:
        """Mark the shutdown as requested; safe inside a signal handler and from other threads."""
        self.requested = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.event.set)
            if at_once:
                self._loop.call_soon_threadsafe(self.at_once.set)


@contextmanager
def watch_shutdown() -> Iterator[Shutdown]:
    """Observe SIGTERM and SIGINT while the block runs. The handlers found there are called as before.

    Outside the main thread nothing can be observed; the Shutdown then stays silent until someone calls `request`.
    """
    shutdown = Shutdown()
    _watchers.append(shutdown)
    if threading.current_thread() is threading.main_thread():
        _chain_handlers()
    if _requested:
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
    _received.clear()


def on_repeated_signal(callback: Callable[[], None]) -> None:
    """Call `callback` when `watch_shutdown` sees a stop signal that it has seen before.

    One Ctrl-C is a SIGINT from the terminal and in most servers a SIGTERM from the main process as well: different
    signals are one request.
    """
    _on_repetition.append(callback)


@contextmanager
def hold_stop() -> Iterator[None]:
    """For what a server cuts off as soon as it stops, while it waits for everything else (WebSockets of Granian's).

    The server is told of a stop when the last such block has ended. Those who wait for a Shutdown are told at once, so
    the block has to end in time by itself. For code on the event loop.
    """
    global _holds
    _holds += 1
    try:
        yield
    finally:
        _holds -= 1
        if not _holds:
            callbacks, _held_back[:] = _held_back[:], []
            for callback in callbacks:
                callback()


def tell_server(callback: Callable[[], None]) -> None:
    """Call `callback`, which stops the server, now or when nothing holds it any more."""
    if _holds:
        _held_back.append(callback)
    else:
        callback()


def stop_requested() -> bool:
    """Whether this process has been asked to stop."""
    return _requested or any(watcher.requested for watcher in _watchers)


def request_shutdown() -> None:
    """Tell every present and future watcher that this process has been asked to stop."""
    global _requested
    _requested = True
    _notify_watchers()


def _on_signal(signum: int, frame: FrameType | None) -> None:
    repeated = _is_repeated(signum)
    _notify_watchers(at_once=repeated)
    if repeated:
        for callback in _on_repetition:
            callback()
    previous = _chained.get(signal.Signals(signum), signal.SIG_DFL)
    if callable(previous):
        previous(signum, frame)
    elif previous == signal.SIG_DFL:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _is_repeated(signum: int) -> bool:
    now = time.monotonic()
    first = _received.setdefault(signum, now)
    return now > first and (signum == signal.SIGINT or now - first > ONE_REQUEST_S)


def _notify_watchers(*, at_once: bool = False) -> None:
    for watcher in tuple(_watchers):
        watcher.request(at_once=at_once)
