"""The life of one inference request in numbers: when it was accepted, its tokens as they come, why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Literal

from app.cluster import messages as m
from app.protocol.errors import ApiError
from app.telemetry import families as f
from app.telemetry.metrics import Metrics

EndReason = Literal["done", "client_disconnect", "failed", "rejected", "timeout", "shutdown"]


class RequestMeter:
    """Made when a request is submitted to a replica of `stage`; `end` has to be called, the first call counts.

    `model` is a served name. Batches of events cost one observation each, however many tokens they hold.
    """

    def __init__(self, metrics: Metrics, model: str, stage: int, *, clock: Callable[[], float] = perf_counter) -> None:
        self._metrics = metrics
        self._model = model
        self._stage = str(stage)
        self._clock = clock
        self._inter_token = metrics.histogram(f.INTER_TOKEN, model)
        self._generated = metrics.value(f.GENERATION_TOKENS, model)
        self._phase = metrics.value(f.REQUESTS_WAITING, model)
        self._phase.add()
        self._started = clock()
        self._last = 0.0
        self._tokens = 0
        self._pieces = 0
        self._usage: m.Usage | None = None
        self._ended = False

    def accepted(self) -> None:
        """A replica has taken it; also called when a second one has."""
        running = self._metrics.value(f.REQUESTS_RUNNING, self._model)
        self._phase.add(-1)
        self._phase = running
        running.add()

    def take(self, events: list[m.AnyEvent]) -> None:
        """One batch of its answer, as it arrives."""
        tokens = pieces = 0
        finished = False
        for event in events:
            match event:
                case m.Delta():
                    tokens += event.tokens
                case m.Chunk():
                    pieces += 1
                case m.Usage():
                    self._usage = event
                case m.Finish():
                    finished = True
        if tokens or pieces:
            self._observe(tokens + pieces, whole=finished)
            self._tokens += tokens
            self._pieces += pieces
            self._generated.add(tokens)

    def _observe(self, tokens: int, *, whole: bool) -> None:
        now = self._clock()
        if self._last:
            self._inter_token.observe((now - self._last) / tokens, tokens)
        elif not whole:  # an answer in one piece has no first token
            self._metrics.histogram(f.TIME_TO_FIRST_TOKEN, self._model).observe(now - self._started)
        self._last = now

    def aborted(self, reason: EndReason) -> None:
        """A replica was told to stop working on it."""
        self._metrics.value(f.REQUESTS_ABORTED, self._stage, reason).add()

    def end(self, reason: EndReason) -> None:
        """It is over."""
        if self._ended:
            return
        self._ended = True
        self._phase.add(-1)
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
        self._generated.add(max(0, total - self._tokens))


def reason_of(error: BaseException) -> EndReason:
    """Why a request ended that ended with `error`."""
    if isinstance(error, ApiError):
        if error.status in (408, 504):
            return "timeout"
        return "rejected" if error.status < 500 else "failed"
    return "client_disconnect" if isinstance(error, asyncio.CancelledError) else "failed"
