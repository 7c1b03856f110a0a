"""The master: one process a server, which owns the registry and the local replicas and outlives any API worker.

It leaves when the last API worker is gone, whatever killed it: workers hold locks that the kernel drops, not
connections. `python -m app.cluster.master RUN_DIR SERVER_PID SERVER_TICKS`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from app.cluster.identity import Server
from app.cluster.locks import Lock
from app.cluster.process import spawn_undertaker
from app.cluster.registry import Registry
from app.cluster.rundir import Phase, RunDir, StartupError, State
from app.cluster.supervisor import Supervisor
from app.settings.models import prepare
from app.settings.schema import Settings
from app.telemetry.logging import configure_logging

logger = logging.getLogger("app.master")

POLL_S = 0.25
LOCK_S = 3.0
LINGER_S = 5.0
"""How long it stays without any API worker while the server lives: workers are being replaced or reloaded."""
ORPHAN_S = 8.0
"""How long it stays with API workers whose server has been killed; they end themselves sooner."""
TOUCH_S = 1.0
LOADING_GRACE_S = 2.0
"""A replica that is still loading has no request to finish."""

EXIT_FAILED = 3


class Leases:
    """Tells when nobody needs this master any more."""

    def __init__(self, run_dir: RunDir) -> None:
        self._lock = Lock(run_dir.leases)
        self._server = run_dir.server
        self._unleased_since: float | None = None
        self._orphaned_since: float | None = None

    def close(self) -> bool:
        """Hold the leases exclusively from now on, so that no worker attaches any more; False if one holds a lease."""
        return self._lock.try_exclusive()

    def needless(self) -> bool:
        """Whether to leave now."""
        now = time.monotonic()
        alive, leased = self._server.alive, self._leased()
        self._unleased_since = None if leased else (self._unleased_since or now)
        self._orphaned_since = None if alive else (self._orphaned_since or now)
        if self._orphaned_since is not None and now - self._orphaned_since >= ORPHAN_S:
            return True
        if self._unleased_since is None:
            return False
        return not alive or now - self._unleased_since >= LINGER_S

    def _leased(self) -> bool:
        if not self._lock.try_exclusive():
            return True
        self._lock.release()
        return False


class Master:
    """One run of the master in a run directory whose master.lock it holds."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._leases = Leases(run_dir)
        self._restarts = run_dir.read_state().restarts
        self._stop = asyncio.Event()
        self._registry: Registry | None = None
        self._supervisor: Supervisor | None = None
        self._grace_s = LOADING_GRACE_S

    async def run(self) -> int:
        """Load, serve until nobody needs it, clean up; the exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        self._record("starting", "starting")
        needless = asyncio.create_task(self._wait_until_needless(), name="leases")
        load = asyncio.create_task(self._load(), name="load")
        try:
            await asyncio.wait([load, needless], return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                self._grace_s = (await load).master.shutdown_timeout
                self._record("ready")
                await needless
        except Exception as error:  # noqa: BLE001 - whatever it is, the workers must be told
            await self._unload(load)
            return self._fail(error)
        finally:
            needless.cancel()
        await self._unload(load)
        return self._leave()

    async def _load(self) -> Settings:
        settings = await prepare(self._read_settings(), self._progress)
        self._registry = Registry(settings, self._run_dir.registry)
        await self._registry.start()
        self._supervisor = Supervisor(settings, self._registry, self._run_dir.path)
        await self._supervisor.start(self._progress)
        return settings

    async def _unload(self, load: asyncio.Task[Settings]) -> None:
        load.cancel()
        await asyncio.wait([load])
        if self._supervisor is not None:
            await self._supervisor.stop(self._grace_s)
        if self._registry is not None:
            await self._registry.stop()

    def _read_settings(self) -> Settings:
        stored = self._run_dir.read_settings()
        if stored is None:
            raise StartupError(f"there are no settings in {self._run_dir.path}")
        settings = msgspec.json.decode(stored, type=Settings)
        configure_logging(settings.log)
        return settings

    async def _wait_until_needless(self) -> None:
        touched = time.monotonic()
        while not self._stop.is_set() and not self._leases.needless():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), POLL_S)
            if time.monotonic() - touched >= TOUCH_S:
                touched = time.monotonic()
                self._run_dir.touch_state()

    def _progress(self, step: str) -> None:
        logger.info("%s", step)
        self._record("starting", step)

    def _record(self, phase: Phase, detail: str = "") -> None:
        self._run_dir.write_state(State(phase, pid=os.getpid(), restarts=self._restarts, detail=detail))

    def _fail(self, error: Exception) -> int:
        message = str(error) if isinstance(error, StartupError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, StartupError):
            logger.error("the master failed", exc_info=error)
        self._run_dir.write_state(State("failed", pid=os.getpid(), error=message))
        spawn_undertaker(self._run_dir.path, self._run_dir.server)
        return EXIT_FAILED

    def _leave(self) -> int:
        if self._leases.close() or not self._run_dir.server.alive:
            self._run_dir.remove()
        else:  # told to stop while workers need it: they will elect another one
            self._record("exited")
        return 0


def hold_master_lock(run_dir: RunDir) -> Lock | None:
    """The lock that makes this process the master; None if another process is it, or the directory is gone."""
    try:
        lock = Lock(run_dir.master_lock)
    except FileNotFoundError:
        return None
    deadline = time.monotonic() + LOCK_S
    while not lock.try_exclusive():  # a worker that probes it holds it for an instant
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    return lock if lock.is_at(run_dir.master_lock) else None


def main() -> None:
    """Be the master of the run directory on the command line, unless it has one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging()
    path, pid, ticks = sys.argv[1:4]
    run_dir = RunDir(Path(path), Server(int(pid), int(ticks)))
    lock = hold_master_lock(run_dir)
    if lock is None:
        return
    sys.exit(asyncio.run(Master(run_dir).run()))


if __name__ == "__main__":
    main()
