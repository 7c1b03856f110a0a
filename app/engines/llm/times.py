"""What vLLM's statistics tell, in the log: of each request (--enable-ar-profiler), of all in a while (--log-stats)."""

from __future__ import annotations

import logging
import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

logger = logging.getLogger("app.llm")

WHILE_S = 10.0
"""How often the stage's own line is written at most; while nothing runs there is none."""


class RequestTimes(StatLoggerBase):  # type: ignore[misc]
    """Logs a line for each request that has ended, through vLLM's statistics hook."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        """vLLM's signature; nothing of it is of interest."""

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after every step."""
        for ended in iteration_stats.finished_requests if iteration_stats is not None else ():
            parts = {"queue": ended.queued_time, "prefill": ended.prefill_time, "decode": ended.decode_time}
            told = ", ".join(f"{part} {seconds * 1000:.1f} ms" for part, seconds in parts.items())
            logger.info(
                "request %s took %s, total %.1f ms: %d tokens of prompt, of which %d were cached, and %d made",
                *(ended.request_id, told, ended.e2e_latency * 1000),
                *(ended.num_prompt_tokens, ended.num_cached_tokens, ended.num_generation_tokens),
            )

    def log_engine_initialized(self) -> None:
        """There is nothing to say of it."""


class StageStatistics(StatLoggerBase):  # type: ignore[misc]
    """Logs what the stage has done since the line before."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        """vLLM's signature; one of these is made for each engine of data_parallel_size."""
        self._engine = engine_index
        self._since = time.monotonic()
        self._read = self._written = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after every step."""
        if iteration_stats is not None:
            self._read += iteration_stats.num_prompt_tokens
            self._written += iteration_stats.num_generation_tokens
        seconds = time.monotonic() - self._since
        if scheduler_stats is None or seconds < WHILE_S:
            return
        logger.info(
            "engine %d: %d requests run, %d wait; %.1f tokens/s read, %.1f written; %.0f %% of the KV cache are in use",
            *(self._engine, scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs),
            *(self._read / seconds, self._written / seconds, 100 * scheduler_stats.kv_cache_usage),
        )
        self._since += seconds
        self._read = self._written = 0

    def log_engine_initialized(self) -> None:
        """There is nothing to say of it."""
