"""One replica process on a Ray cluster: an actor that Ray places by its resources runs it, and ends with it.

The same program joins the same registry, over tcp. Ray is imported by whoever makes a RayReplica, and by nobody else.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from app.cluster.exposure import replica_endpoint
from app.cluster.local import LocalReplica
from app.cluster.rundir import StartupError
from app.engines.spec import EXIT_FAILED, ReplicaSpec
from app.settings.devices import world_size
from app.settings.models import prepare
from app.settings.schema import Settings, StageConfig

logger = logging.getLogger("app.cluster")

LOST = -signal.SIGKILL
"""What stands for the exit code of a replica whose node, or whose actor, is gone."""
_ANSWER_S = 2.0


class ReplicaHost:
    """The actor: one replica process as its child, which dies with it."""

    def __init__(self) -> None:
        self._replica: LocalReplica | None = None
        self._obstacle = ""

    async def run(self, encoded: bytes) -> int:
        """Run the replica that a ReplicaSpec in JSON describes; its exit code."""
        import ray.util

        spec = msgspec.json.decode(encoded, type=ReplicaSpec)
        try:
            spec.bind = replica_endpoint(str(ray.util.get_node_ip_address()), spec.token)  # type: ignore[no-untyped-call]
            spec.stage = await _at_hand(spec.stage)
        except StartupError as error:
            self._obstacle = str(error)
            return EXIT_FAILED
        spec.parent_pid = os.getpid()
        self._replica = LocalReplica(spec)
        await self._replica.spawn()
        return await self._replica.wait()

    def report(self, beside: str) -> tuple[str, str]:
        """What kept it from starting, or the last lines that it printed; its first error unless `beside` tells that."""
        if self._replica is None:
            return self._obstacle, ""
        return self._replica.tail(), self._replica.first_error(beside)

    async def stop(self, grace_s: float) -> None:
        """As LocalReplica.stop."""
        if self._replica is not None:
            await self._replica.stop(grace_s)


async def _at_hand(stage: StageConfig) -> StageConfig:
    """The stage with its model on this node. Its devices are what Ray has given to the actor."""
    placed = msgspec.structs.replace(stage, devices=stage.devices if stage.devices == "cpu" else "")
    if not stage.source or await asyncio.to_thread(Path(stage.model).exists):
        return placed
    named = msgspec.structs.replace(
        placed, model=stage.source, source="", engine_args=stage.engine_args | stage.argument_sources
    )
    named.argument_sources = {}
    alone = Settings(model=stage.source, served_model_names=[], pipeline="custom", stages=[named])
    return (await prepare(alone, logger.info)).stages[0]


class RayReplica:
    """As LocalReplica, somewhere on the cluster at `address`; each `spawn` may land on another node."""

    def __init__(self, spec: ReplicaSpec, address: str) -> None:
        self.spec = spec
        self.name = f"{spec.stage.name}/{spec.replica_id}"
        self.pid = 0
        self._address = address
        self._actor: Any = None
        self._end: Any = None
        self._tail = self._error = ""

    async def spawn(self) -> None:
        """Have Ray place it; it registers with the master by itself.

        Raises:
            StartupError: there is no such cluster.
        """
        ray, there, free = await asyncio.to_thread(_connected, self._address)
        needs = resources(self.spec.stage, has_gpus=bool(there.get("GPU")))
        self._tail = f"Ray has not placed it: it needs {needs}, and these are free: {free}"
        placed = ray.remote(ReplicaHost).options(
            **needs, max_concurrency=8, scheduling_strategy="SPREAD", name=f"{self.name} of {os.getpid()}"
        )
        await self._discard()
        self._actor = placed.remote()
        self._end = self._actor.run.remote(msgspec.json.encode(self.spec))

    async def wait(self) -> int:
        """Wait for its end; the exit code, LOST where its node or its actor is gone."""
        from ray.exceptions import RayError

        try:
            code = int(await asyncio.shield(asyncio.ensure_future(_value(self._end))))
            self._tail, self._error = await asyncio.wait_for(_value(self._actor.report.remote("")), _ANSWER_S)
        except (RayError, TimeoutError) as error:
            logger.warning("%s: its Ray actor is gone: %s", self.name, str(error).partition("\n")[0])
            return LOST
        return code

    def tail(self) -> str:
        """The last lines it printed, once it has ended; before that, what it is waiting for."""
        return self._tail

    def first_error(self, beside: str) -> str:
        """As LocalReplica.first_error."""
        return "" if self._error[:80] in beside else self._error

    async def stop(self, grace_s: float) -> None:
        """Let what runs finish for `grace_s` seconds, then end it."""
        from ray.exceptions import RayError

        if self._actor is not None:
            with suppress(RayError, TimeoutError):
                await asyncio.wait_for(_value(self._actor.stop.remote(grace_s)), grace_s + _ANSWER_S)
        await self._discard()

    def kill(self) -> None:
        """End the actor, and with it the process."""
        if self._actor is not None:
            import ray

            ray.kill(self._actor)

    async def _discard(self) -> None:
        if self._actor is not None:
            await asyncio.to_thread(self.kill)
            self._actor = None


def resources(stage: StageConfig, *, has_gpus: bool) -> dict[str, float]:
    """What Ray shall have free for one replica, in its words.

    GPUs are those of its parallelism; several stages share one by what --gpu-memory-utilization says of each.
    """
    if stage.kind == "stub" or stage.devices == "cpu" or not has_gpus:
        return {"num_cpus": 1}
    world = world_size(stage)
    share = float(stage.engine_args.get("gpu_memory_utilization") or 1.0)
    return {"num_cpus": 1, "num_gpus": world if world > 1 else share}


def _connected(address: str) -> tuple[Any, dict[str, float], dict[str, float]]:
    """Ray, connected to the cluster at `address` ("": the one of this host) once in this process, and what is there and
    what is free of the cluster's resources. Blocks, for long where the cluster is ailing: call it on a thread.

    Raises:
        StartupError: Ray is not installed, or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise StartupError("--worker-backend ray needs the package ray: pip install 'ray>=2.60' on every node")
    import ray

    if not ray.is_initialized():
        # Called on a thread, so that Ray leaves the signals of the process alone.
        try:
            _knock(address)
            ray.init(address or "auto", logging_level=logging.ERROR, ignore_reinit_error=True)
        except (OSError, RuntimeError, ValueError) as error:
            where = address or "on this host (name one with --ray-address, or run `ray start --head`)"
            raise StartupError(f"there is no Ray cluster {where}: {error}") from error
    connected: Any = ray
    return connected, connected.cluster_resources(), connected.available_resources()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


async def _value(reference: Awaitable[Any]) -> Any:
    return await reference
