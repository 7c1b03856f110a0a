"""GET /v1/omni/status: the stages and replicas of the server. POST /v1/omni/scale, for administrators."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post
from litestar.openapi.spec import OpenAPIType, Schema

from app.cluster.locks import turn
from app.pipeline.scaling import scale
from app.protocol.decoding import BodyDecoder
from app.protocol.status import ScaleRequest, StatusReport, status_report
from app.routes.auth import require_admin
from app.routes.body import read_strictly
from app.routes.openapi import ERRORS, Body, operation
from app.routes.state import orchestrator, order_lock, settings
from app.routes.submission import refuse_while_stopping

_decoder = BodyDecoder(ScaleRequest)
_STAGE = Schema(one_of=[Schema(type=OpenAPIType.INTEGER), Schema(type=OpenAPIType.STRING)])
_SCALE_BODY = Body(
    "server",
    ("stage", "replicas"),
    {"stage": _STAGE, "replicas": OpenAPIType.INTEGER, "devices": OpenAPIType.STRING},
    {"stage": 0, "replicas": 2},
)


@get(
    "/v1/omni/status",
    responses=ERRORS,
    tags=["server"],
    operation_id="getStatus",
    summary="The stages and their replicas",
)
async def get_status(request: Request[Any, Any, Any]) -> StatusReport:
    """From memory, the same from every API worker; loads are as old as a heartbeat."""
    return _status(request)


@post(
    "/v1/omni/scale",
    status_code=202,
    guards=[require_admin],
    operation_class=operation(_SCALE_BODY),
    operation_id="scaleStage",
    responses=ERRORS,
    raises=[],
    tags=["server"],
    summary="Change how many replicas of a stage run on the server's host",
)
async def scale_stage(request: Request[Any, Any, Any]) -> StatusReport:
    """Accepted: new replicas load one after another; those that leave finish what runs there."""
    refuse_while_stopping(request)
    asked = await read_strictly(request, _decoder)
    async with turn(order_lock(request.app, "scale")):  # each waits until it sees its number with the master
        await scale(orchestrator(request.app), settings(request.app), asked)
    return _status(request)


def _status(request: Request[Any, Any, Any]) -> StatusReport:
    return status_report(settings(request.app).stages, orchestrator(request.app).membership)
