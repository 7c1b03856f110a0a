"""Liveness and readiness, answered from memory: nothing here waits for a replica."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Litestar, Request, get, route

from app.cluster.messages import ReplicaInfo
from app.protocol.errors import ApiError
from app.routes.errors import shutting_down
from app.routes.state import orchestrator, stopping


class Alive(msgspec.Struct):
    """The body of /livez."""

    status: Literal["ok"] = "ok"


class StageHealth(msgspec.Struct):
    """One stage: how many of its replicas answer requests."""

    name: str
    replicas: int


class Health(msgspec.Struct):
    """The body of /health, /readyz and /ping when all is well."""

    stages: list[StageHealth]
    status: Literal["ok"] = "ok"


@get("/livez", opt={"public": True}, tags=["health"], summary="The process lives", sync_to_thread=False)
def livez() -> Alive:
    """200 as long as this worker answers at all."""
    return Alive()


@get(["/health", "/readyz"], opt={"public": True}, tags=["health"], summary="Every stage has a live replica")
async def readyz(request: Request[Any, Any, Any]) -> Health:
    """200 when requests can be served; 503 names the stages without a replica."""
    return check_ready(request.app)


@route("/ping", http_method=["GET", "POST"], status_code=200, tags=["health"], summary="As /health, for SageMaker")
async def ping(request: Request[Any, Any, Any]) -> Health:
    """SageMaker's name for /health."""
    return check_ready(request.app)


def check_ready(app: Litestar) -> Health:
    """What the orchestrator knows of its stages.

    Raises:
        ApiError: 503, the server is stopping or a stage has no replica that answers.
    """
    if stopping(app).is_set():
        raise shutting_down()
    stages = orchestrator(app).status()
    missing = [f"{stage.name!r} (stage {stage.stage_id})" for stage in stages if not stage.ready]
    if missing:
        raise ApiError(503, f"No live replica for {', '.join(missing)}.", code="not_ready")
    return Health(stages=[StageHealth(stage.name, _up(stage.replicas)) for stage in stages])


def _up(replicas: list[ReplicaInfo]) -> int:
    return sum(replica.state == "up" for replica in replicas)
