"""Starts the local replicas of every stage, restarts the ones that die, ends them all."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.cluster.exposure import replica_endpoint
from app.cluster.local import LocalReplica, describe_exit
from app.cluster.registry import Key, Registry
from app.cluster.rundir import StartupError
from app.engines.spec import ReplicaSpec
from app.settings.schema import Settings, StageConfig

logger = logging.getLogger("app.cluster")

Progress = Callable[[str], None]
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STEADY_S = 60.0
"""A replica that has lived so long starts its back-off from the beginning."""

_LAST_WORD_S = 0.5


class Supervisor:
    """Runs one watch task per local replica; a death is told to the registry at once."""

    def __init__(self, settings: Settings, registry: Registry, run_dir: Path) -> None:
        self._settings = settings
        self._registry = registry
        self._run_dir = run_dir
        self._replicas: list[LocalReplica] = []
        self._watches: list[asyncio.Task[None]] = []
        registry.on_given_up = self._end

    async def start(self, progress: Progress) -> None:
        """Start all replicas; returns when each is up. Stages whose devices overlap start one after another.

        Raises:
            StartupError: names the stage, what ended it and what it printed last.
        """
        groups = group_by_devices(self._settings.stages)
        starts = [asyncio.create_task(self._start_stages(group, progress)) for group in groups]
        try:
            async with asyncio.timeout(self._settings.master.init_timeout):
                await asyncio.gather(*starts)
        except TimeoutError:
            raise StartupError(
                f"the stages were not ready within --init-timeout {self._settings.master.init_timeout:g} s"
            ) from None
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _start_stages(self, stages: list[StageConfig], progress: Progress) -> None:
        for stage in stages:
            for replica_id in range(stage.num_replicas):
                replica = LocalReplica(self._spec(stage, replica_id))
                self._replicas.append(replica)
                began = time.monotonic()
                progress(f"stage {stage.stage_id} ({replica.name}): loading {stage.model}")
                await self._start_one(replica)
                progress(f"stage {stage.stage_id} ({replica.name}): ready after {time.monotonic() - began:.1f} s")
                self._watches.append(asyncio.create_task(self._keep_alive(replica), name=f"watch {replica.name}"))

    def _spec(self, stage: StageConfig, replica_id: int) -> ReplicaSpec:
        directory = self._run_dir
        return ReplicaSpec(
            stage=stage,
            replica_id=replica_id,
            registry=f"ipc://{directory}/registry.sock",
            bind=f"ipc://{directory}/r{stage.stage_id}-{replica_id}.sock",
            token=self._settings.master.token,
            served_model_names=self._settings.served_model_names,
            shutdown_timeout=self._settings.master.shutdown_timeout,
            slow_client_timeout=self._settings.server.slow_client_timeout_s,
            media=self._settings.media,
            log=self._settings.log,
            parent_pid=os.getpid(),
            scratch=str(directory),
            bind_tcp=self._pull_endpoint(stage),
        )

    def _pull_endpoint(self, stage: StageConfig) -> str:
        """Where headless replicas of later stages pull what this stage produced."""
        master = self._settings.master
        if not master.port or not any(stage.stage_id in later.sources for later in self._settings.stages):
            return ""
        return replica_endpoint(master.replica_address or master.address, master.token)

    async def _start_one(self, replica: LocalReplica) -> None:
        """Spawn and wait until it is up, it ends, or the time is over."""
        stage, key = replica.spec.stage, _key(replica)
        limit = self._settings.master.stage_init_timeout
        self._registry.expect(key)
        await replica.spawn()
        up = asyncio.create_task(self._registry.wait_up(key))
        ended = asyncio.create_task(replica.wait())
        try:
            done, _ = await asyncio.wait([up, ended], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if up in done:
                return
            where = f"stage {stage.stage_id} ({replica.name}, model {stage.model})"
            if ended in done:
                raise StartupError(await self._explain(where, replica, ended.result()))
            raise StartupError(f"{where} was not ready within --stage-init-timeout {limit:g} s\n{replica.tail()}")
        finally:
            up.cancel()
            ended.cancel()

    async def _explain(self, where: str, replica: LocalReplica, code: int) -> str:
        reason = await self._last_word(_key(replica))
        message = f"{where} failed to start ({describe_exit(code)})"
        if reason:
            cause = replica.first_error(beside=reason)
            return f"{message}: {reason}" + (f"; it had printed: {cause}" if cause else "")
        return f"{message}; its last lines:\n{replica.tail() or '(it printed nothing)'}"

    async def _last_word(self, key: Key) -> str:
        """Its Bye, which may arrive a moment after the kernel has told of its end."""
        end = time.monotonic() + _LAST_WORD_S
        while not (reason := self._registry.failure(key)) and time.monotonic() < end:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.02)
        return reason

    async def _keep_alive(self, replica: LocalReplica) -> None:
        """Wait for its death, tell the registry, start it again; longer pauses while it keeps dying young."""
        deaths = 0
        while True:
            began = time.monotonic()
            code = await replica.wait()
            self._registry.lost(_key(replica), describe_exit(code))
            deaths = 0 if time.monotonic() - began > STEADY_S else deaths + 1
            while True:
                pause = BACKOFF_S[min(deaths, len(BACKOFF_S)) - 1] if deaths else BACKOFF_S[0]
                logger.warning("%s ended (%s); starting it again in %g s", replica.name, describe_exit(code), pause)
                await asyncio.sleep(pause)
                try:
                    await self._start_one(replica)
                    break
                except StartupError as error:
                    logger.error("%s", error)
                    deaths += 1
                    await replica.stop(grace_s=1.0)

    def _end(self, key: Key) -> None:
        """The registry has given a replica up (silent or stalled): end the process; its watch starts another one."""
        for replica in self._replicas:
            if _key(replica) == key:
                replica.kill()

    async def stop(self, grace_s: float) -> None:
        """Drain and end every replica; afterwards no process of theirs is left."""
        for watch in self._watches:
            watch.cancel()
        for watch in self._watches:
            with suppress(asyncio.CancelledError):
                await watch
        await asyncio.gather(*(replica.stop(grace_s) for replica in self._replicas))


def _key(replica: LocalReplica) -> Key:
    return replica.spec.stage.stage_id, replica.spec.replica_id


def group_by_devices(stages: list[StageConfig]) -> list[list[StageConfig]]:
    """Stages that share a device, directly or through others, form a group; "cpu" shares nothing, "" shares all."""
    groups: list[tuple[set[str], list[StageConfig]]] = []
    everything = {device for stage in stages for device in _devices(stage)} | {"any"}
    for stage in stages:
        devices = everything if stage.devices == "" else _devices(stage)
        touching = [group for group in groups if group[0] & devices]
        merged = (devices.union(*(g[0] for g in touching)), [s for g in touching for s in g[1]] + [stage])
        groups = [group for group in groups if group not in touching] + [merged]
    return [group for _, group in groups]


def _devices(stage: StageConfig) -> set[str]:
    return {device.strip() for device in stage.devices.split(",")} - {"", "cpu"}
