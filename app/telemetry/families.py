"""Every metric family of our own: one table, which docs/metrics.md explains and maps to vllm-omni's names.

Labels are bounded: `route` is a template and never a path, `model` a served name, `stage` and `replica` are ids.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """Name, meaning and label names of one family; `buckets` are the upper bounds of a histogram in ascending order."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def cells(self) -> int:
        """Numbers that one series takes: a histogram has its buckets, the one above them, and the sum."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)

HTTP_REQUESTS = Family(
    "omni_http_requests_total",
    "counter",
    "Ended HTTP requests by route template, method and class of the status.",
    ("route", "method", "status"),
)
HTTP_DURATION = Family(
    "omni_http_request_duration_seconds",
    "histogram",
    "From the head of a request to the end of its answer; a stream counts in full.",
    ("route", "method"),
    _SECONDS,
)
REQUESTS_WAITING = Family(
    "omni_requests_waiting", "gauge", "Inference requests that no replica has accepted yet.", ("model",)
)
REQUESTS_RUNNING = Family(
    "omni_requests_running", "gauge", "Inference requests accepted by a replica and not ended.", ("model",)
)
REQUESTS_ENDED = Family(
    "omni_requests_ended_total",
    "counter",
    "Ended inference requests: done, client_disconnect, failed, rejected, timeout, shutdown, worker_lost.",
    ("model", "reason"),
)
REQUESTS_ABORTED = Family(
    "omni_requests_aborted_total",
    "counter",
    "Requests stopped in a replica before their end, by the reason they ended for.",
    ("stage", "reason"),
)
TIME_TO_FIRST_TOKEN = Family(
    "omni_time_to_first_token_seconds",
    "histogram",
    "From the submission to the first token of a streamed answer.",
    ("model",),
    _SECONDS,
)
INTER_TOKEN = Family(
    "omni_inter_token_latency_seconds",
    "histogram",
    "Between two tokens of a streamed answer; tokens that arrive together share their interval.",
    ("model",),
    _TOKEN_SECONDS,
)
TIME_TO_FIRST_AUDIO = Family(
    "omni_time_to_first_audio_seconds",
    "histogram",
    "From the submission to the first piece of sound of a streamed answer.",
    ("model",),
    _SECONDS,
)
AUDIO_SECONDS = Family("omni_audio_seconds_total", "counter", "Seconds of sound that were made.", ("model",))
END_TO_END = Family(
    "omni_e2e_request_latency_seconds",
    "histogram",
    "From the submission to the end of a request that worked.",
    ("model",),
    _SECONDS,
)
PROMPT_TOKENS = Family("omni_prompt_tokens_total", "counter", "Prompt tokens of ended requests.", ("model",))
GENERATION_TOKENS = Family("omni_generation_tokens_total", "counter", "Generated tokens.", ("model",))
SCRAPE_FAILURES = Family(
    "omni_replica_scrape_failures_total",
    "counter",
    "Scrapes that went without the series of a replica, because it did not answer in time.",
    ("stage",),
)

STAGE_INFO = Family("omni_stage_info", "gauge", "The stages of the pipeline; always 1.", ("stage", "name", "kind"))
REPLICAS = Family("omni_replicas", "gauge", "Replicas of a stage in each state.", ("stage", "state"))
REPLICA_RESTARTS = Family(
    "omni_replica_restarts_total",
    "counter",
    "How often a new process took the place of a replica, since the master started.",
    ("stage", "replica"),
)
REPLICA_RUNNING = Family(
    "omni_replica_requests_running", "gauge", "Requests that the engine runs at once.", ("stage", "replica")
)
REPLICA_WAITING = Family(
    "omni_replica_requests_waiting", "gauge", "Requests in the queue of the engine.", ("stage", "replica")
)
REPLICA_HELD = Family(
    "omni_replica_held_bytes", "gauge", "Bytes that it holds for API workers and other stages.", ("stage", "replica")
)

COUNTED = (
    HTTP_REQUESTS,
    HTTP_DURATION,
    REQUESTS_WAITING,
    REQUESTS_RUNNING,
    REQUESTS_ENDED,
    REQUESTS_ABORTED,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN,
    TIME_TO_FIRST_AUDIO,
    AUDIO_SECONDS,
    END_TO_END,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    SCRAPE_FAILURES,
)
"""Counted by each API worker and added up at a scrape."""
OBSERVED = (STAGE_INFO, REPLICAS, REPLICA_RESTARTS, REPLICA_RUNNING, REPLICA_WAITING, REPLICA_HELD)
"""The same in every API worker: what the master tells of the replicas."""
