"""The replicas in numbers, from what the master has told: states, restarts, queues."""

from __future__ import annotations

from typing import get_args

from app.cluster.messages import Membership, ReplicaState
from app.settings.schema import StageConfig
from app.telemetry import families as f
from app.telemetry.metrics import Samples


def replica_samples(stages: list[StageConfig], membership: Membership) -> Samples:
    """The families of families.OBSERVED."""
    samples: Samples = {family: {} for family in f.OBSERVED}
    for stage in stages:
        stage_id = str(stage.stage_id)
        samples[f.STAGE_INFO][stage_id, stage.name, stage.kind] = [1]
        for state, count in _states(stage, membership).items():
            samples[f.REPLICAS][stage_id, state] = [count]
    for replica in membership.replicas:
        key = (str(replica.stage_id), str(replica.replica_id))
        samples[f.REPLICA_RUNNING][key] = [replica.load.running]
        samples[f.REPLICA_WAITING][key] = [replica.load.waiting]
        samples[f.REPLICA_HELD][key] = [replica.load.held]
    for stage_number, replica_number, count in membership.restarts:
        samples[f.REPLICA_RESTARTS][str(stage_number), str(replica_number)] = [count]
    return samples


def _states(stage: StageConfig, membership: Membership) -> dict[str, int]:
    """Replicas in each state; those that should be on this host and have not come yet count as down."""
    mine = [replica for replica in membership.replicas if replica.stage_id == stage.stage_id]
    states = dict.fromkeys(get_args(ReplicaState), 0)
    for replica in mine:
        states[replica.state] += 1
    wanted = dict(membership.wanted).get(stage.stage_id, stage.num_replicas)
    states["down"] += max(0, wanted - sum(replica.local for replica in mine))
    return states
