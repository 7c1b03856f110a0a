"""`omni-app headless`: replicas of one stage on this host, for a master that runs elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from app.cluster import messages as m
from app.cluster.access import access_of
from app.cluster.exposure import replica_endpoint
from app.cluster.local import LocalReplica, describe_exit
from app.cluster.rundir import StartupError
from app.cluster.supervisor import BACKOFF_S, STEADY_S
from app.cluster.transport import Channel, dealer, local_address_towards, new_context, tcp_address
from app.engines.spec import EXIT_FAILED, EXIT_REFUSED, ReplicaSpec
from app.settings.devices import device_sets, is_further_node
from app.settings.schema import Settings, StageConfig

logger = logging.getLogger("app.cluster")

_ENDED_S = 1.0


def run(settings: Settings, stage_id: int) -> int:
    """Serve stage `stage_id` for the master at settings.master until stopped; the exit code of the command.

    Raises:
        StartupError: there is no such stage, the master's address cannot be resolved, or a token is missing.
    """
    stage = next((x for x in settings.stages if x.stage_id == stage_id), None)
    if stage is None:
        raise StartupError(f"there is no stage {stage_id}: the pipeline has {[x.stage_id for x in settings.stages]}")
    if is_further_node(stage):
        where = f"{stage.engine_args['master_addr']}"
        sys.stderr.write(f"stage {stage_id} ({stage.name}): a node of the replica whose first one is at {where}\n")
        return asyncio.run(_Headless(settings, [LocalReplica(_node(settings, stage))], None).serve())
    specs = _specs(settings, stage)
    what = "a replica" if len(specs) == 1 else f"{len(specs)} replicas"
    sys.stderr.write(f"stage {stage_id} ({stage.name}): {what} for the master at {specs[0].registry}\n")
    return asyncio.run(_serve(settings, specs))


def _specs(settings: Settings, stage: StageConfig) -> list[ReplicaSpec]:
    master = settings.master
    try:
        host = master.replica_address or local_address_towards(master.address, master.port)
    except OSError as error:
        raise StartupError(f"cannot find a route to the master {master.address}:{master.port}: {error}") from error
    registry, bind = tcp_address(master.address, master.port), replica_endpoint(host, master.token)
    sets = device_sets(stage, master.local_replicas or 1)
    stages = [msgspec.structs.replace(stage, devices=devices) for devices in sets]
    if master.replica_id is None:
        return [_spec(settings, stage, registry, bind) for stage in stages]
    return [_spec(settings, stage, registry, bind, wanted) for wanted, stage in enumerate(stages, master.replica_id)]


def _node(settings: Settings, stage: StageConfig) -> ReplicaSpec:
    """It talks to nobody but the first node: that one has joined the server."""
    return _spec(settings, stage, "", "")


def _spec(settings: Settings, stage: StageConfig, registry: str, bind: str, wanted: int = -1) -> ReplicaSpec:
    master = settings.master
    return ReplicaSpec(
        stage=stage,
        replica_id=-1,
        wanted_id=wanted,
        registry=registry,
        bind=bind,
        token=master.token,
        encrypt=master.encrypt,
        served_model_names=settings.served_model_names,
        shutdown_timeout=master.shutdown_timeout,
        slow_client_timeout=settings.server.slow_client_timeout_s,
        media=settings.media,
        log=settings.log,
        parent_pid=os.getpid(),
    )


async def _serve(settings: Settings, specs: list[ReplicaSpec]) -> int:
    context = new_context()
    line = Channel(dealer(context, specs[0].registry, os.urandom(8), access_of(settings.master)), lambda frames: None)
    try:
        return await _Headless(settings, [LocalReplica(spec, i) for i, spec in enumerate(specs)], line).serve()
    finally:
        line.close()
        context.term()


class _Headless:
    """Keeps the replicas alive; the first signal lets them finish what runs, the second ends them at once.

    `line` leads to the master, which is told of their deaths, of which the kernel tells us at once; None where it knows
    of none of them.
    """

    def __init__(self, settings: Settings, replicas: list[LocalReplica], line: Channel | None) -> None:
        self._replicas = replicas
        self._line = line
        self._grace_s = settings.master.shutdown_timeout
        self._load_s = settings.master.stage_init_timeout
        self._turns = {replica.spec.stage.devices: asyncio.Lock() for replica in replicas}
        self._stopping = asyncio.Event()

    async def serve(self) -> int:
        """Until told to stop, or until no replica is left; 0, or the worst that has happened to one."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal)
        keeps = [asyncio.create_task(self._keep_alive(replica)) for replica in self._replicas]
        everything = asyncio.gather(*keeps)
        stop = asyncio.create_task(self._stopping.wait())
        ends: list[asyncio.Future[Any]] = [stop, everything]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        codes = [keep.result() for keep in keeps if keep.done()]
        everything.cancel()
        stop.cancel()
        with suppress(asyncio.CancelledError):
            await everything
        await asyncio.gather(*(replica.stop(self._grace_s) for replica in self._replicas))
        return max(codes, default=0)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            for replica in self._replicas:
                replica.kill()
        self._stopping.set()

    async def _keep_alive(self, replica: LocalReplica) -> int:
        """Start it again when it dies, with growing pauses; give it up when it was refused or keeps dying young."""
        pauses = iter(BACKOFF_S)
        while True:
            began = time.monotonic()
            code = await self._live(replica)
            if self._line is not None:
                self._line.send([m.encode(m.Gone(replica.notices.address, describe_exit(code)))])
            if code == EXIT_REFUSED:
                return EXIT_REFUSED
            if time.monotonic() - began > STEADY_S:
                pauses = iter(BACKOFF_S)
            pause = next(pauses, None)
            if pause is None:
                logger.error("%s ended (%s); it is not started again", replica.name, describe_exit(code))
                return EXIT_FAILED
            logger.warning("%s ended (%s); starting it again in %g s", replica.name, describe_exit(code), pause)
            await asyncio.sleep(pause)

    async def _live(self, replica: LocalReplica) -> int:
        """One life of it; the exit code. Those that share devices load one after another."""
        async with self._turns[replica.spec.stage.devices]:
            await replica.spawn()
            ended = asyncio.create_task(replica.wait())
            try:
                if await self._is_up(replica, ended):
                    logger.info("%s is up", replica.name)
                elif not ended.done():
                    logger.error("%s was not ready within --stage-init-timeout %g s", replica.name, self._load_s)
                    await replica.stop(_ENDED_S)
            except BaseException:
                ended.cancel()
                raise
        return await ended

    async def _is_up(self, replica: LocalReplica, ended: asyncio.Task[int]) -> bool:
        """Wait for its start or its end; the time to load begins when the master has accepted it."""
        for step, limit in ((replica.notices.welcomed, None), (replica.notices.up, self._load_s)):
            if not await _first(step.wait(), ended, limit):
                return False
        return True


async def _first(step: Coroutine[Any, Any, object], other: asyncio.Task[int], limit: float | None) -> bool:
    """Whether `step` is done before the other one, and within the limit."""
    task = asyncio.create_task(step)
    try:
        done, _ = await asyncio.wait([task, other], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return task in done
    finally:
        task.cancel()
