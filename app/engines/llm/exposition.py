"""vLLM's own metrics as text, for the API workers to add to theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from prometheus_client import REGISTRY, CollectorRegistry, Metric, disable_created_metrics, generate_latest

_PREFIX = "vllm:"


class _Series:
    """What vLLM has put into the process's registry, without what other libraries keep there."""

    def collect(self) -> Iterator[Metric]:
        """Called by generate_latest."""
        return (family for family in REGISTRY.collect() if family.name.startswith(_PREFIX))


def exposition() -> bytes:
    """Prometheus' text format, without the times of creation that would double it."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    text: bytes = generate_latest(cast("CollectorRegistry", _Series()))
    return text
