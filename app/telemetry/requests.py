"""The life of one inference request in numbers: when it was accepted, its tokens as they come, why it ended."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter
from typing import Literal

from app.cluster import messages as m
from app.protocol.errors import ApiError
from app.telemetry import families as f
from app.telemetry.metrics import Metrics

EndReason = Literal["done", "client_disconnect", "failed", "rejected", "timeout", "shutdown"]

_BOUNDS = f.INTER_TOKEN.buckets
_INTERVALS = len(_BOUNDS) + 1


_FLUSH_BATCHES = 32
"""Shared memory is written once for so many batches: a write to it costs as much as all else that a batch costs."""


class RequestMeter:
    """Made when a request is submitted to a replica of `stage`; `end` has to be called, the first call counts.

    `model` is a served name; the tokens of an answer that is not `streamed` have no times. `take` lies on the path of
    every token and is written for speed.
    """

    def __init__(
        self, metrics: Metrics, model: str, stage: int, *, streamed: bool, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._stage = str(stage)
        self._streamed = streamed
        self._clock = clock
        self._phase = metrics.value(f.REQUESTS_WAITING, model)
        self._phase.add()
        self._started = clock()
        self._usage: m.Usage | None = None
        self._ended = False
        self._heard = False
        self._last = 0.0
        self._flushed = 0.0
        self._batches = 0
        self._pieces = 0
        self._tokens = 0
        self._tokens_flushed = 0
        self._intervals = [0] * _INTERVALS

    def accepted(self) -> None:
        """A replica has taken it; also called when a second one has."""
        running = self._metrics.value(f.REQUESTS_RUNNING, self._model)
        self._phase.add(-1)
        self._phase = running
        running.add()

    def take(self, events: list[m.AnyEvent]) -> None:
        """One batch of its answer, as it arrives."""
        tokens = pieces = 0
        for event in events:
            kind = type(event)
            if kind is m.Delta:
                tokens += event.tokens  # type: ignore[union-attr]
            elif kind is m.Chunk:
                pieces += 1
            elif kind is m.Usage:
                self._usage = event  # type: ignore[assignment]
            elif kind is m.Audio:
                self._hear(event)  # type: ignore[arg-type]
        arrived = tokens + pieces
        if not arrived:
            return
        now = self._clock()
        self._tokens += tokens
        self._pieces += pieces
        if not self._last:
            self._first(now)
            return
        self._intervals[bisect_left(_BOUNDS, (now - self._last) / arrived)] += arrived
        self._last = now
        self._batches += 1
        if self._batches == _FLUSH_BATCHES:
            self._flush()

    def _hear(self, piece: m.Audio) -> None:
        if not self._heard and self._streamed:
            self._metrics.histogram(f.TIME_TO_FIRST_AUDIO, self._model).observe(self._clock() - self._started)
        self._heard = True
        self._metrics.value(f.AUDIO_SECONDS, self._model).add(piece.samples / piece.sample_rate)

    def _first(self, now: float) -> None:
        self._last = self._flushed = now
        if self._streamed:
            self._metrics.histogram(f.TIME_TO_FIRST_TOKEN, self._model).observe(now - self._started)
        self._flush()

    def _flush(self) -> None:
        if self._batches and self._streamed:
            self._metrics.histogram(f.INTER_TOKEN, self._model).add(self._intervals, self._last - self._flushed)
            self._intervals = [0] * _INTERVALS
            self._flushed = self._last
            self._batches = 0
        self._metrics.value(f.GENERATION_TOKENS, self._model).add(self._tokens - self._tokens_flushed)
        self._tokens_flushed = self._tokens

    def aborted(self, reason: EndReason) -> None:
        """A replica was told to stop working on it."""
        self._metrics.value(f.REQUESTS_ABORTED, self._stage, reason).add()

    def end(self, reason: EndReason) -> None:
        """It is over."""
        if self._ended:
            return
        self._ended = True
        self._phase.add(-1)
        self._flush()
        self._count_rest()
        self._metrics.value(f.REQUESTS_ENDED, self._model, reason).add()
        if reason == "done":
            self._metrics.histogram(f.END_TO_END, self._model).observe(self._clock() - self._started)

    def _count_rest(self) -> None:
        """What only the engine knows: the prompt, and tokens that came as whole objects; else a piece is a token."""
        total = self._tokens + self._pieces
        if self._usage is not None:
            self._metrics.value(f.PROMPT_TOKENS, self._model).add(self._usage.prompt_tokens)
            total = self._usage.completion_tokens
        self._metrics.value(f.GENERATION_TOKENS, self._model).add(max(0, total - self._tokens))


class StageMeter:
    """One of several stages that work on a request; what of it is counted by stage. A RequestMeter counts the rest."""

    def __init__(self, metrics: Metrics, stage: int) -> None:
        self._metrics = metrics
        self._stage = str(stage)

    def accepted(self) -> None:
        """A replica has taken it."""

    def take(self, events: list[m.AnyEvent]) -> None:
        """One batch of what the stage makes of it."""

    def aborted(self, reason: EndReason) -> None:
        """A replica was told to stop working on it."""
        self._metrics.value(f.REQUESTS_ABORTED, self._stage, reason).add()

    def end(self, reason: EndReason) -> None:
        """The stage is done with it."""


def reason_of(error: BaseException) -> EndReason:
    """Why a request ended that ended with `error`."""
    if isinstance(error, ApiError):
        if error.status in (408, 504):
            return "timeout"
        return "rejected" if error.status < 500 else "failed"
    return "client_disconnect" if isinstance(error, asyncio.CancelledError) else "failed"
