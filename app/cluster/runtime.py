"""An API worker's hold on the one master of its server: lease, election, waiting for it, electing again.

The order matters. The lease comes first: from then on a living master does not leave, and a leaving one holds the
leases exclusively, so that newcomers wait and elect afterwards. The boot lock lets one worker at a time look and spawn.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Callable

import msgspec

from app.cluster.locks import Lock
from app.cluster.process import spawn_master, spawn_undertaker
from app.cluster.pulse import Pulse
from app.cluster.rundir import RunDir, StartupError, State
from app.settings.problems import ConfigError
from app.settings.schema import Settings
from app.signals import Shutdown

logger = logging.getLogger("app.server")

RESTARTS = 3
"""How many masters that died while they served are replaced before the server gives up."""
POLL_S = 0.05
PROBE_S = 0.5
CLAIM_S = 60.0
"""How long to wait for the previous owner of the run directory, or for its last master, to leave."""
SPAWN_S = 60.0
"""How long a new process may take to become the master."""

NOT_CONFIGURED = ("origins", "created")
"""Fields of Settings that differ between workers by nature."""


class Interrupted(StartupError):  # noqa: N818 - a stop request, not a fault
    """The server was told to stop while it was starting."""


class Attachment:
    """One API worker's membership in its server. `attach`, then `keep`, at the end `release`."""

    def __init__(self, run_dir: RunDir, shutdown: Shutdown) -> None:
        self.run_dir = run_dir
        self._shutdown = shutdown
        self._leases: Lock | None = None
        self._boot: Lock | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._master_pid = 0
        self._pulse = Pulse(run_dir, SPAWN_S)

    async def attach(self, settings: Settings) -> Settings:
        """Join the server and wait until its master is ready; returns the settings that the whole server uses.

        Raises:
            Interrupted: a stop signal came first.
            StartupError: the master failed, now or for another worker before, or the run directory is not ours.
        """
        await self._claim()
        stored = self.run_dir.write_settings(msgspec.json.encode(settings))
        settings = _adopt(stored, settings)
        self._pulse = Pulse(self.run_dir, settings.master.heartbeat_timeout)
        await self._await_ready()
        return settings

    async def keep(self, replaced: Callable[[], None]) -> None:
        """Watch the master and elect a new one when it dies; `replaced` is called after each. Runs until cancelled.

        Raises:
            Interrupted: a stop signal came while a new master was loading.
            StartupError: too many masters died, or a new one failed to start.
        """
        while True:
            await asyncio.sleep(PROBE_S)
            if self._master is not None:
                self._master.poll()  # reaps it
            if self._pulse.lost(PROBE_S):
                pid = self._pulse.end()
                logger.error("the master process %d gave no sign of life for %g s; killed it", pid, self._pulse.limit_s)
            alive = self.run_dir.master_alive()
            if not alive:
                logger.error("the master process is gone; starting another one")
            # Another worker may have been faster, so that there has been a master at each look.
            if not alive or self.run_dir.read_state().pid != self._master_pid:
                await self._await_ready()
                replaced()

    def release(self) -> None:
        """Give up the lease; the master leaves when nobody holds one. May be called again.

        The last worker clears up where the master has left before it: told to stop, as all processes of a service are.
        """
        if self._leases is not None and self._leases.try_exclusive() and self._is_abandoned(self._leases):
            self.run_dir.remove()
        for lock in (self._leases, self._boot):
            if lock is not None:
                lock.close()
        self._leases = self._boot = None

    def _is_abandoned(self, leases: Lock) -> bool:
        exited = self.run_dir.read_state().phase == "exited"
        return exited and not self.run_dir.master_alive() and self._is_current(leases)

    # ------------------------------------------------------------------------------------------------ claiming

    async def _claim(self) -> None:
        deadline = time.monotonic() + CLAIM_S
        while not self._try_claim():
            self._check_interrupted()
            if time.monotonic() > deadline:
                raise StartupError(f"the run directory {self.run_dir.path} is still in use by another server")
            await asyncio.sleep(POLL_S)

    def _try_claim(self) -> bool:
        self.run_dir.create()
        try:
            boot = Lock(self.run_dir.boot_lock)
            leases = Lock(self.run_dir.leases)
        except FileNotFoundError:  # a leaving master has just removed the directory
            return False
        if boot.try_exclusive() and self._make_ours(leases) and leases.try_shared() and self._is_current(leases):
            self.run_dir.mark_owned()
            boot.release()
            self._boot, self._leases = boot, leases
            return True
        boot.close()
        leases.close()
        return False

    def _make_ours(self, leases: Lock) -> bool:
        owner = self.run_dir.other_owner()
        if owner is None:
            return True
        if owner.alive:
            raise StartupError(
                f"the run directory {self.run_dir.path} belongs to the running server {owner.pid}; "
                "give each server its own OMNI_RUN_DIR"
            )
        if not leases.try_exclusive() or self.run_dir.master_alive():
            return False
        self.run_dir.take()
        return True

    def _is_current(self, leases: Lock) -> bool:
        return leases.is_at(self.run_dir.leases)

    # ------------------------------------------------------------------------------------------------ the master

    async def _await_ready(self) -> None:
        assert self._boot is not None
        while True:
            self._check_interrupted()
            self.run_dir.raise_failure()
            if self.run_dir.master_alive():
                state = self.run_dir.read_state()
                if state.phase == "ready":
                    self._master_pid = state.pid
                    return
                self._check_pulse()
            elif self._boot.try_exclusive():
                try:
                    await self._elect()
                finally:
                    self._boot.release()
                continue
            await asyncio.sleep(POLL_S)

    async def _elect(self) -> None:
        """Start a master unless there is one, or the last one's end shows that another would fare no better."""
        state = self.run_dir.read_state()
        if self.run_dir.master_alive() or state.phase == "failed":
            return
        restarts = state.restarts + (state.phase in ("ready", "exited"))
        if state.phase == "starting":
            self._fail(f"the master process died while it was loading{self._exit_code()}; last step: {state.detail}")
        elif restarts > RESTARTS:
            self._fail(f"the master process died {restarts} times{self._exit_code()}; giving up")
        else:
            self.run_dir.write_state(State("spawning", restarts=restarts))
            self._master = spawn_master(self.run_dir.path, self.run_dir.server)
            await self._await_lock(self._master)

    async def _await_lock(self, master: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SPAWN_S
        while not self.run_dir.master_alive():
            if master.poll() is not None:
                if self.run_dir.read_state().phase == "spawning":
                    self._fail(f"the master process could not start{self._exit_code()}")
                return
            self._check_interrupted()
            if time.monotonic() > deadline:
                raise StartupError(f"the master process {master.pid} did not start within {SPAWN_S:g} s")
            await asyncio.sleep(POLL_S)

    def _fail(self, error: str) -> None:
        self.run_dir.write_state(State("failed", error=error))
        spawn_undertaker(self.run_dir.path, self.run_dir.server)

    def _exit_code(self) -> str:
        code = self._master.poll() if self._master is not None else None
        return "" if code is None else f" (exit code {code})"

    def _check_interrupted(self) -> None:
        if self._shutdown.requested:
            raise Interrupted("interrupted by a shutdown signal")

    def _check_pulse(self) -> None:
        if self._pulse.lost(POLL_S):
            pid, limit = self._pulse.end(), self._pulse.limit_s
            raise StartupError(f"the master process {pid} gave no sign of life for {limit:g} s while it was loading")


def settle(run_dir: RunDir, resolve: Callable[[], Settings]) -> Settings:
    """The settings to build an application with: the server's, if its first worker has stored them, else resolved now.

    Raises:
        ConfigError: from `resolve`, unless the server has settings already; those stay valid.
    """
    stored = run_dir.read_settings()
    if stored is None:
        return resolve()
    try:
        own = resolve()
    except ConfigError as error:
        logger.warning(
            "this server keeps the settings it started with; what this worker sees now is invalid: %s", error
        )
        return _decode(stored)
    return _adopt(stored, own)


def _adopt(stored: bytes, own: Settings) -> Settings:
    settings = _decode(stored)
    if changed := _differences(settings, own):
        logger.warning(
            "this server keeps the settings it started with; this worker sees other values for: %s", ", ".join(changed)
        )
    return settings


def _decode(stored: bytes) -> Settings:
    try:
        return msgspec.json.decode(stored, type=Settings)
    except msgspec.DecodeError as error:
        raise StartupError(f"the running server was started by another version; restart it ({error})") from error


def _differences(stored: Settings, own: Settings) -> list[str]:
    """Names of the settings that differ; no values, as some are secret."""
    left, right = _flatten(msgspec.to_builtins(stored)), _flatten(msgspec.to_builtins(own))
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def _flatten(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, object] = {}
    for key, inner in value.items():
        full = f"{name}.{key}" if name else str(key)
        if full not in NOT_CONFIGURED:
            flat.update(_flatten(inner, full))
    return flat
