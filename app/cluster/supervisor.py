"""Starts the local replicas of every stage, restarts the ones that die, ends them all."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from app.cluster import messages as m
from app.cluster.exposure import reachable, replica_endpoint
from app.cluster.external import await_external, missing
from app.cluster.local import LocalReplica, describe_exit
from app.cluster.localplan import LocalPlan
from app.cluster.rayreplica import RayReplica
from app.cluster.registry import Registry
from app.cluster.roster import Key
from app.cluster.rundir import StartupError
from app.cluster.transport import tcp_address
from app.engines.spec import EXIT_FAILED, ReplicaSpec
from app.settings.schema import Settings, StageConfig

logger = logging.getLogger("app.cluster")

Progress = Callable[[str], None]
Replica = LocalReplica | RayReplica
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
        self._plan = LocalPlan(settings.local_stages, run_dir / "scale.json")
        self._replicas: list[Replica] = []
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._scaling: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        registry.on_given_up = self._end

    async def start(self, progress: Progress) -> None:
        """Start all local replicas; returns when each is up, and those that are expected from other hosts.

        Stages whose devices overlap start one after another.

        Raises:
            StartupError: names the stage, what ended it and what it printed last.
        """
        settings, limit = self._settings, self._settings.master.init_timeout
        groups = group_by_devices(settings.local_stages)
        starts = [asyncio.create_task(self._start_stages(group, progress)) for group in groups]
        starts += [
            asyncio.create_task(await_external(self._registry, stage, progress)) for stage in settings.external_stages
        ]
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*starts)
        except TimeoutError:
            late = "; ".join(missing(self._registry, settings.stages))
            raise StartupError(f"the stages were not ready within --init-timeout {limit:g} s: {late}") from None
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        self._registry.on_scale = self.scale

    async def _start_stages(self, stages: list[StageConfig], progress: Progress) -> None:
        for stage in stages:
            wanted = self._plan.wanted(stage.stage_id)
            self._registry.want(stage.stage_id, wanted)
            for replica_id in range(wanted, stage.num_replicas):  # fewer than configured, since an earlier master
                self._registry.retire((stage.stage_id, replica_id))
            for replica_id in range(wanted):
                replica = self._replica(stage, replica_id)
                began = time.monotonic()
                progress(f"stage {stage.stage_id} ({replica.name}): loading {stage.model}")
                await self._start_one(replica)
                progress(f"stage {stage.stage_id} ({replica.name}): ready after {time.monotonic() - began:.1f} s")
                self._watch(replica, self._keep_alive(replica))

    def _watch(self, replica: Replica, life: Coroutine[Any, Any, None]) -> None:
        self._watches[replica] = asyncio.create_task(life, name=f"watch {replica.name}")

    def _of(self, stage_id: int) -> list[Replica]:
        return [replica for replica in self._replicas if replica.spec.stage.stage_id == stage_id]

    def _replica(self, stage: StageConfig, replica_id: int) -> Replica:
        """One more of the stage, not started yet.

        Raises:
            LookupError: there are no devices for it.
        """
        used = [replica.spec.stage.devices for replica in self._of(stage.stage_id)]
        devices = self._plan.devices(stage, used)
        replica = self._made(msgspec.structs.replace(stage, devices=devices), replica_id)
        self._registry.expect(_key(replica))
        self._replicas.append(replica)
        return replica

    def _made(self, stage: StageConfig, replica_id: int) -> Replica:
        spec, master = self._spec(stage, replica_id), self._settings.master
        if master.worker_backend != "ray":
            return LocalReplica(spec)
        spec.registry = tcp_address(reachable(master.address), master.port)
        spec.bind = spec.bind_tcp = spec.scratch = ""
        return RayReplica(spec, master.ray_address)

    def _spec(self, stage: StageConfig, replica_id: int) -> ReplicaSpec:
        directory = self._run_dir
        return ReplicaSpec(
            stage=stage,
            replica_id=replica_id,
            registry=f"ipc://{directory}/registry.sock",
            bind=f"ipc://{directory}/r{stage.stage_id}-{replica_id}.sock",
            token=self._settings.master.token,
            encrypt=self._settings.master.encrypt,
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

    async def _start_one(self, replica: Replica) -> None:
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

    async def _explain(self, where: str, replica: Replica, code: int) -> str:
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

    async def _keep_alive(self, replica: Replica) -> None:
        """Wait for its death, tell the registry, start it again; longer pauses while it keeps dying young."""
        deaths = 0
        while True:
            began = time.monotonic()
            code = await replica.wait()
            self._registry.lost(_key(replica), describe_exit(code))
            deaths = 0 if time.monotonic() - began > STEADY_S else deaths + 1
            deaths = await self._revive(replica, deaths, code)

    async def _revive(self, replica: Replica, deaths: int, code: int) -> int:
        """Start it again until that succeeds; how often it has died young by then."""
        while True:
            pause = BACKOFF_S[min(deaths, len(BACKOFF_S)) - 1] if deaths else BACKOFF_S[0]
            logger.warning("%s ended (%s); starting it again in %g s", replica.name, describe_exit(code), pause)
            await asyncio.sleep(pause)
            if await self._starts(replica):
                return deaths
            deaths += 1

    async def _starts(self, replica: Replica) -> bool:
        try:
            await self._start_one(replica)
        except StartupError as error:
            logger.error("%s", error)
            await replica.stop(grace_s=1.0)
            return False
        return True

    # ------------------------------------------------------------------------------------------------ scaling

    def scale(self, scale: m.Scale) -> None:
        """Run that many replicas of a local stage from now on; returns at once."""
        stage = self._plan.change(scale)
        if stage is None:
            logger.error("stage %d does not run here; it cannot be scaled", scale.stage_id)
            return
        self._registry.want(stage.stage_id, scale.replicas)
        running = self._scaling.get(stage.stage_id)
        if running is None or running.done():
            self._scaling[stage.stage_id] = asyncio.create_task(self._adjust(stage), name=f"scale {stage.name}")

    async def _adjust(self, stage: StageConfig) -> None:
        """Add replicas one after another, or let the youngest go, until there are as many as wanted."""
        while len(mine := self._of(stage.stage_id)) != (wanted := self._plan.wanted(stage.stage_id)):
            if len(mine) > wanted:
                self._let_go(mine[-1])
                continue
            try:
                replica = self._replica(stage, self._registry.free_id(stage.stage_id))
            except LookupError as error:
                logger.error("%s", error)
                return
            await self._add(replica)

    async def _add(self, replica: Replica) -> None:
        logger.info("stage %s: starting %s", replica.spec.stage.name, replica.name)
        life = self._keep_alive(replica) if await self._starts(replica) else self._keep_trying(replica)
        if replica in self._replicas:
            self._watch(replica, life)

    async def _keep_trying(self, replica: Replica) -> None:
        await self._revive(replica, 1, EXIT_FAILED)
        await self._keep_alive(replica)

    def _let_go(self, replica: Replica) -> None:
        """It finishes what runs there and takes no more."""
        logger.info("stage %s: %s leaves", replica.spec.stage.name, replica.name)
        self._replicas.remove(replica)
        if watch := self._watches.pop(replica, None):
            watch.cancel()
        leaving = asyncio.create_task(self._retire(replica), name=f"retire {replica.name}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _retire(self, replica: Replica) -> None:
        grace_s = self._settings.master.shutdown_timeout
        self._registry.drain(_key(replica), grace_s)
        await replica.stop(grace_s)
        self._registry.retire(_key(replica))

    def _end(self, key: Key) -> None:
        """The registry has given a replica up (silent or stalled): end the process; its watch starts another one."""
        for replica in self._replicas:
            if _key(replica) == key:
                replica.kill()

    async def stop(self, grace_s: float) -> None:
        """Drain and end every replica; afterwards no process of theirs is left."""
        tasks = [*self._scaling.values(), *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.stop(grace_s) for replica in self._replicas), *self._leaving)


def _key(replica: Replica) -> Key:
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
