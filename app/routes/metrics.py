"""GET /metrics: the server in Prometheus' text format, the same from every API worker."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, get

from app.protocol.errors import ApiError
from app.routes.state import metrics, orchestrator, settings
from app.telemetry import families
from app.telemetry.exposition import CONTENT_TYPE, merge, write
from app.telemetry.replicas import replica_samples

if TYPE_CHECKING:
    from litestar import Litestar

logger = logging.getLogger("app.routes")

REPLICA_LIMIT_S = 2.0
"""How long a scrape waits for the replicas' own series; well below Prometheus' usual limit of 10 s."""
_NO_SERIES = 404


@get("/metrics", tags=["server"], summary="Metrics for Prometheus")
async def get_metrics(request: Request[Any, Any, Any]) -> Response[str]:
    """Counts over all workers, the state of the replicas, and their engines' own series as far as they answer."""
    engines = await _engine_lines(request.app)
    counted = await asyncio.to_thread(metrics(request.app).collect)
    observed = replica_samples(settings(request.app).stages, orchestrator(request.app).membership)
    lines = [*write(counted), *write(observed), *engines]
    return Response("\n".join(lines) + "\n", headers={"Content-Type": CONTENT_TYPE})


async def _engine_lines(app: Litestar) -> list[str]:
    texts = []
    for replica, answer in await orchestrator(app).call_all("metrics", REPLICA_LIMIT_S):
        if isinstance(answer, bytes):
            texts.append((replica.stage_id, replica.replica_id, answer.decode()))
        elif not (isinstance(answer, ApiError) and answer.status == _NO_SERIES):
            metrics(app).value(families.SCRAPE_FAILURES, str(replica.stage_id)).add()
            logger.debug("replica %d of stage %d: %r", replica.replica_id, replica.stage_id, answer)
    return list(merge(texts))
