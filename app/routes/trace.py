"""What is known of one HTTP request while it runs: its id, how it ends; one log line at its end."""

from __future__ import annotations

import os
import re
import time
import uuid
from typing import Any, Literal, cast

import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app.routes.head import head_as_get
from app.routes.state import metrics, settings
from app.settings.schema import LogConfig
from app.telemetry.logging import AccessRecord, log_access

Outcome = Literal["done", "refused", "failed", "client gone", "draining"]

_SCOPE_KEY = "omni.trace"
_ACCEPTABLE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


class Trace(msgspec.Struct):
    """`path` as it came, mount prefix included. `outcome` is None until somebody knows better than the status code."""

    request_id: str
    path: str
    started: float
    status: int = 0
    outcome: Outcome | None = None


def unique(request_id: str) -> str:
    """An id for what replicas are asked on behalf of a request or a session.

    Clients choose X-Request-Id and may use one twice at a time; replicas must never see that.
    """
    return f"{request_id}-{os.urandom(4).hex()}"


def trace_of(scope: Scope) -> Trace:
    """The trace of a request; made here when the application runs without `traced` (in a bare Litestar)."""
    scope_ = cast("dict[str, Any]", scope)
    trace = scope_.get(_SCOPE_KEY)
    if trace is None:
        trace = scope_[_SCOPE_KEY] = Trace(_request_id(scope), scope["path"], time.monotonic())
    return cast("Trace", trace)


async def traced(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run a Litestar application for one HTTP request: X-Request-Id on every answer (404 too), one log line,
    one observation for /metrics."""
    trace = trace_of(scope)
    inner, send = head_as_get(scope, send)
    header = (b"x-request-id", trace.request_id.encode())

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            trace.status = message["status"]
            if settings(inner["litestar_app"]).server.request_id_headers:
                message["headers"] = [*message["headers"], header]
        await send(message)

    try:
        await app(inner, receive, send_with_id)
    finally:
        conclude(inner, str(cast("dict[str, Any]", scope).get("method", "")), trace)


def conclude(scope: Scope, method: str, trace: Trace) -> None:
    """The one log line and the one observation of a request that has ended; `scope` is the one Litestar has served."""
    record = _record(scope, method, trace)
    if _is_logged(settings(scope["litestar_app"]).log, scope):
        log_access(record)
    route = cast("dict[str, Any]", scope).get("path_template", "unmatched")
    metrics(scope["litestar_app"]).observe_http(route, method, trace.status, record.seconds)


def _is_logged(log: LogConfig, scope: Scope) -> bool:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return not log.disable_access_log and path not in log.silent_endpoints


def _record(scope: Scope, method: str, trace: Trace) -> AccessRecord:
    client = scope.get("client")
    return AccessRecord(
        request_id=trace.request_id,
        client=client[0] if client else "",
        method=method,
        path=trace.path,
        status=trace.status,
        outcome=trace.outcome or _outcome(trace.status),
        seconds=round(time.monotonic() - trace.started, 6),
    )


def _outcome(status: int) -> Outcome:
    if 400 <= status < 500:
        return "refused"
    return "done" if 0 < status < 400 else "failed"


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id when it is short and harmless in a log, else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
