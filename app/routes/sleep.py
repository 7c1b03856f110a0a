"""POST /v1/omni/sleep and /v1/omni/wakeup; /sleep, /wake_up and /is_sleeping as vLLM has them. For administrators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import FromQuery, QueryParameter

from app.cluster.locks import turn
from app.pipeline.sleeping import sleep, wake_up
from app.protocol.decoding import BodyDecoder
from app.protocol.sleep import SleepAnswer, SleepMode, SleepRequest, WakeRequest
from app.routes.auth import require_admin
from app.routes.body import read_strictly
from app.routes.openapi import ERRORS, Body, operation
from app.routes.state import orchestrator, order_lock
from app.routes.submission import refuse_while_stopping

_sleep = BodyDecoder(SleepRequest)
_wake = BodyDecoder(WakeRequest)
_STAGES = Schema(type=OpenAPIType.ARRAY, items=Schema(type=OpenAPIType.INTEGER))
_SLEEP_BODY = Body(
    "server",
    (),
    {"stage_ids": _STAGES, "level": OpenAPIType.INTEGER, "mode": OpenAPIType.STRING},
    {"stage_ids": [0], "level": 1},
)
_WAKE_BODY = Body("server", (), {"stage_ids": _STAGES}, {"stage_ids": [0]})
_ADMIN: dict[str, Any] = {"guards": [require_admin], "responses": ERRORS, "raises": [], "tags": ["server"]}
_Level = Annotated[Literal[1, 2], QueryParameter(description="1: weights go to host memory; 2: they are dropped.")]


class Sleeping(msgspec.Struct):
    """The body of GET /is_sleeping."""

    is_sleeping: bool


@post(
    "/v1/omni/sleep",
    status_code=200,
    operation_class=operation(_SLEEP_BODY),
    operation_id="sleepStages",
    summary="Have stages give their memory back",
    **_ADMIN,
)
async def sleep_stages(request: Request[Any, Any, Any]) -> SleepAnswer:
    """They take no requests until they are woken."""
    refuse_while_stopping(request)
    return await _put_to_sleep(request, await read_strictly(request, _sleep))


@post(
    "/v1/omni/wakeup",
    status_code=200,
    operation_class=operation(_WAKE_BODY),
    operation_id="wakeStages",
    summary="Wake stages that sleep",
    **_ADMIN,
)
async def wake_stages(request: Request[Any, Any, Any]) -> SleepAnswer:
    """They take requests when this is answered."""
    refuse_while_stopping(request)
    return await _wake_up(request, await read_strictly(request, _wake))


@post("/sleep", status_code=200, operation_id="sleepEngine", summary="As vLLM: all stages sleep", **_ADMIN)
async def sleep_all(
    request: Request[Any, Any, Any], level: _Level = 1, mode: FromQuery[SleepMode] = "abort"
) -> Response[None]:
    """The same as /v1/omni/sleep for all stages that can."""
    refuse_while_stopping(request)
    await _put_to_sleep(request, SleepRequest(level=level, mode=mode))
    return Response(None, status_code=200)


@post("/wake_up", status_code=200, operation_id="wakeEngine", summary="As vLLM: all stages wake", **_ADMIN)
async def wake_all(request: Request[Any, Any, Any]) -> Response[None]:
    """The same as /v1/omni/wakeup for all stages."""
    refuse_while_stopping(request)
    await _wake_up(request, WakeRequest())
    return Response(None, status_code=200)


@get("/is_sleeping", operation_id="isSleeping", summary="As vLLM: whether a stage sleeps", **_ADMIN)
async def is_sleeping(request: Request[Any, Any, Any]) -> Sleeping:
    """From memory."""
    return Sleeping(bool(orchestrator(request.app).membership.asleep))


async def _put_to_sleep(request: Request[Any, Any, Any], asked: SleepRequest) -> SleepAnswer:
    # Where a wake overtook a sleep, the master would take a stage for awake whose replicas sleep: requests would hang.
    async with turn(order_lock(request.app, "sleep")):
        return await sleep(orchestrator(request.app), asked)


async def _wake_up(request: Request[Any, Any, Any], asked: WakeRequest) -> SleepAnswer:
    async with turn(order_lock(request.app, "sleep")):
        return await wake_up(orchestrator(request.app), asked)
