"""What is told of stages and replicas: the fields that clients and `omni-app status` read."""

from __future__ import annotations

import msgspec

from app.cluster import messages as m
from app.protocol.status import StatusReport, status_report
from app.settings.schema import StageConfig

STAGES = [
    StageConfig(stage_id=0, name="thinker", kind="llm", model="/here/x", source="org/x", lb_policy="session-affinity"),
    StageConfig(stage_id=1, name="talker", kind="stub", model="stub"),
]
LOST = m.ReplicaInfo(
    0, 1, "tcp://10.0.0.2:9", "down", "b", 8, m.Load(), m.Capabilities(), since=50.0, note="no heartbeat for 30 s"
)
UP = m.ReplicaInfo(
    0, 0, "ipc:///r", "up", "a", 7, m.Load(2, 3, 9, 4096), m.Capabilities(), "0.1.0", "vllm 0.32.0", 40.0, local=True
)


def test_a_report_is_json_by_stage() -> None:
    report = status_report(STAGES, m.Membership(1, 1, [UP, LOST], [(0, 0, 2)], [], [(0, 1), (1, 0)], [(0, 2)]))
    assert msgspec.to_builtins(report) == {
        "stages": [
            {
                "stage_id": 0,
                "name": "thinker",
                "kind": "llm",
                "model": "org/x",
                "lb_policy": "session-affinity",
                "wanted": 1,
                "replicas": [
                    {
                        "replica_id": 0,
                        "host": "a",
                        "pid": 7,
                        "state": "up",
                        "in_flight": 5,
                        "queue": 3,
                        "held": 4096,
                        "restarts": 2,
                        "since": 40.0,
                        "address": "ipc:///r",
                        "local": True,
                        "version": "0.1.0",
                        "engine": "vllm 0.32.0",
                        "note": "",
                    },
                    {
                        "replica_id": 1,
                        "host": "b",
                        "pid": 8,
                        "state": "down",
                        "in_flight": 0,
                        "queue": 0,
                        "held": 0,
                        "restarts": 0,
                        "since": 50.0,
                        "address": "tcp://10.0.0.2:9",
                        "local": False,
                        "version": "",
                        "engine": "",
                        "note": "no heartbeat for 30 s",
                    },
                ],
                "asleep": 2,
            },
            {
                "stage_id": 1,
                "name": "talker",
                "kind": "stub",
                "model": "stub",
                "lb_policy": "least-queue-length",
                "wanted": 0,
                "replicas": [],
                "asleep": 0,
            },
        ]
    }
    assert msgspec.json.decode(msgspec.json.encode(report), type=StatusReport) == report
