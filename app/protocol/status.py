"""/v1/omni/status and /v1/omni/scale: what is told of stages and replicas, and what an administrator may change."""

from __future__ import annotations

from typing import Annotated

import msgspec

from app.cluster.messages import Membership, ReplicaInfo, ReplicaState
from app.settings.schema import LoadBalancing, StageConfig, StageKind


class ReplicaReport(msgspec.Struct):
    """One replica. `in_flight`: requests that it has, over all API workers, `queue` of which wait; `held`: bytes.

    `since`: Unix time at which it came into its state; `note`: why it is down. `local`: the server itself starts it.
    """

    replica_id: int
    host: str
    pid: int
    state: ReplicaState
    in_flight: int
    queue: int
    held: int
    restarts: int
    since: float
    address: str
    local: bool
    version: str
    engine: str
    note: str


class StageReport(msgspec.Struct):
    """One stage. `wanted`: how many replicas shall run on the server's own host. `asleep`: at which level, 0 awake."""

    stage_id: int
    name: str
    kind: StageKind
    model: str
    lb_policy: LoadBalancing
    wanted: int
    replicas: list[ReplicaReport]
    asleep: int = 0


class StatusReport(msgspec.Struct):
    """The body of GET /v1/omni/status."""

    stages: list[StageReport]


class ScaleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/omni/scale. `stage`: its id or name. `devices`: of the replicas that are added."""

    stage: int | Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    replicas: Annotated[int, msgspec.Meta(ge=1, le=256)]
    devices: Annotated[str, msgspec.Meta(max_length=4096)] = ""


def status_report(stages: list[StageConfig], membership: Membership) -> StatusReport:
    """What the master has told, by stage."""
    restarts = {(stage, replica): count for stage, replica, count in membership.restarts}
    wanted, asleep = dict(membership.wanted), dict(membership.asleep)
    return StatusReport(
        [
            StageReport(
                stage_id=stage.stage_id,
                name=stage.name,
                kind=stage.kind,
                model=stage.source or stage.model,
                lb_policy=stage.lb_policy,
                wanted=wanted.get(stage.stage_id, 0),
                asleep=asleep.get(stage.stage_id, 0),
                replicas=[
                    _replica(x, restarts.get((x.stage_id, x.replica_id), 0))
                    for x in membership.replicas
                    if x.stage_id == stage.stage_id
                ],
            )
            for stage in stages
        ]
    )


def _replica(info: ReplicaInfo, restarts: int) -> ReplicaReport:
    return ReplicaReport(
        replica_id=info.replica_id,
        host=info.host,
        pid=info.pid,
        state=info.state,
        in_flight=info.load.running + info.load.waiting,
        queue=info.load.waiting,
        held=info.load.held,
        restarts=restarts,
        since=info.since,
        address=info.address,
        local=info.local,
        version=info.version,
        engine=info.engine,
        note=info.note,
    )
