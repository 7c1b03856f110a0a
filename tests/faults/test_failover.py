"""One of two replicas is killed amid 200 requests."""

from __future__ import annotations

import json
import random

from tests.faults.failover import AT_ONCE, kill_one_amid
from tests.faults.matrix import SERVE
from tests.servers import start_server


def test_no_answer_is_wrong_or_lost_that_had_not_streamed() -> None:
    with start_server(SERVE, {"OMNI_STAGE_OVERRIDES": json.dumps({"0": {"num_replicas": 2}})}) as server:
        server.wait_ready(60)
        for seed in range(3):
            outcomes = kill_one_amid(server, random.Random(seed))
            assert outcomes["whole"] == AT_ONCE / 2
            assert outcomes.total() == AT_ONCE
        assert server.stop() == 0
        server.assert_nothing_left()
