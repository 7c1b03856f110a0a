"""How long each request of a text stage took: --enable-ar-profiler."""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

logger = logging.getLogger("app.llm")


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
