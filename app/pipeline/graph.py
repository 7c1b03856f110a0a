"""The pipeline as a graph: which stage answers which kind of request."""

from __future__ import annotations

from app.cluster.messages import Capabilities
from app.pipeline.pool import StagePool
from app.protocol.errors import ApiError


class Graph:
    """The stages of one pipeline. Several may be entries (a chat path and a picture path in one server)."""

    def __init__(self, pools: list[StagePool]) -> None:
        self.pools = {pool.stage.stage_id: pool for pool in pools}

    @property
    def entries(self) -> list[StagePool]:
        return [pool for pool in self.pools.values() if pool.stage.entry]

    def capabilities(self) -> Capabilities:
        """What the entry stages can do together; of several cards the first holds: one stage draws in a pipeline."""
        merged = Capabilities()
        for own in (pool.capabilities for pool in self.entries):
            merged.tasks += [x for x in own.tasks if x not in merged.tasks]
            merged.input_modalities += [x for x in own.input_modalities if x not in merged.input_modalities]
            merged.output_modalities += [x for x in own.output_modalities if x not in merged.output_modalities]
            merged.max_model_len = max(merged.max_model_len, own.max_model_len)
            merged.card = merged.card or own.card
        return merged

    def entry_for(self, kind: str) -> StagePool:
        """The entry stage whose engine answers `kind`.

        Raises:
            ApiError: 404 when the served model cannot do it; 503 while that is not known, because nothing is up.
        """
        for pool in self.entries:
            if kind in pool.capabilities.tasks:
                return pool
        if any(not pool.capabilities.tasks for pool in self.entries):
            raise unavailable([pool.stage.name for pool in self.entries if not pool.ready])
        raise ApiError(404, f"the served model does not answer {kind} requests", code="unsupported_task")


def unavailable(stages: list[str]) -> ApiError:
    """503: nobody can serve these stages now; the supervisor is at it."""
    return ApiError(
        503,
        f"no replica of stage {', '.join(stages)} is available; try again shortly",
        code="no_replica",
        headers={"Retry-After": "2"},
    )
