"""`omni-app headless`: one replica of one stage on this host, for a master that runs elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time

from app.cluster.exposure import replica_endpoint
from app.cluster.local import LocalReplica, describe_exit
from app.cluster.rundir import StartupError
from app.cluster.supervisor import BACKOFF_S, STEADY_S
from app.cluster.transport import local_address_towards, tcp_address
from app.engines.spec import EXIT_REFUSED, ReplicaSpec
from app.settings.schema import Settings, StageConfig

logger = logging.getLogger("app.cluster")


def run(settings: Settings, stage_id: int) -> int:
    """Serve stage `stage_id` for the master at settings.master until stopped; the exit code of the command.

    Raises:
        StartupError: there is no such stage, the master's address cannot be resolved, or a token is missing.
    """
    stage = next((x for x in settings.stages if x.stage_id == stage_id), None)
    if stage is None:
        raise StartupError(f"there is no stage {stage_id}: the pipeline has {[x.stage_id for x in settings.stages]}")
    spec = _spec(settings, stage)
    sys.stderr.write(f"stage {stage_id} ({stage.name}): joining the master at {spec.registry}\n")
    return asyncio.run(_Headless(LocalReplica(spec), settings.master.shutdown_timeout).serve())


def _spec(settings: Settings, stage: StageConfig) -> ReplicaSpec:
    master = settings.master
    try:
        host = master.replica_address or local_address_towards(master.address, master.port)
    except OSError as error:
        raise StartupError(f"cannot find a route to the master {master.address}:{master.port}: {error}") from error
    return ReplicaSpec(
        stage=stage,
        replica_id=-1,
        registry=tcp_address(master.address, master.port),
        bind=replica_endpoint(host, master.token),
        token=master.token,
        served_model_names=settings.served_model_names,
        shutdown_timeout=master.shutdown_timeout,
        slow_client_timeout=settings.server.slow_client_timeout_s,
        media=settings.media,
        log=settings.log,
        parent_pid=os.getpid(),
    )


class _Headless:
    """Keeps the replica alive; the first signal lets it finish what runs, the second ends it at once."""

    def __init__(self, replica: LocalReplica, grace_s: float) -> None:
        self._replica = replica
        self._grace_s = grace_s
        self._stopping = asyncio.Event()

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal)
        stop = asyncio.create_task(self._stopping.wait())
        keep = asyncio.create_task(self._keep_alive())
        await asyncio.wait([stop, keep], return_when=asyncio.FIRST_COMPLETED)
        code = 0 if stop.done() else keep.result()
        keep.cancel()
        stop.cancel()
        await self._replica.stop(self._grace_s)
        return code

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._replica.kill()
        self._stopping.set()

    async def _keep_alive(self) -> int:
        """Start it again when it dies, with growing pauses; give up when it was refused or keeps dying young."""
        pauses = iter(BACKOFF_S)
        while True:
            began = time.monotonic()
            await self._replica.spawn()
            code = await self._replica.wait()
            if code == EXIT_REFUSED:
                return EXIT_REFUSED
            if time.monotonic() - began > STEADY_S:
                pauses = iter(BACKOFF_S)
            pause = next(pauses, None)
            if pause is None:
                logger.error("%s ended (%s); it is not started again", self._replica.name, describe_exit(code))
                return 1
            logger.warning("%s ended (%s); starting it again in %g s", self._replica.name, describe_exit(code), pause)
            await asyncio.sleep(pause)
