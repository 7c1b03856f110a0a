"""What of vLLM's statistics goes to the log. A server with both flags is in tests/telemetry/test_orchmonitor.py."""

from __future__ import annotations

import logging
import time

import pytest
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from app.engines.llm import times


def step(read: int, written: int) -> IterationStats:
    made = IterationStats()
    made.prompt_token_stats.total = read
    made.num_generation_tokens = written
    return made


def test_a_line_in_a_while(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    statistics = times.StageStatistics(engine_index=1)
    busy = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.125)
    with caplog.at_level(logging.INFO, "app.llm"):
        for _ in range(4):
            statistics.record(busy, step(10, 5))
        statistics.record(None, None)
        assert caplog.messages == []
        now = 120.0
        statistics.record(busy, step(0, 0))
        statistics.record(busy, step(7, 7))
    assert caplog.messages == [
        "engine 1: 3 requests run, 2 wait; 2.0 tokens/s read, 1.0 written; 12 % of the KV cache are in use"
    ]
