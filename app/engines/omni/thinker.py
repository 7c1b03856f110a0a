"""The thinker's side of a replica: which requests are tapped, and how their rows go on to the talker."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cluster.messages import Failed
from app.cluster.tensors import Tensor
from app.engines.base import EngineError, Request
from app.engines.llm.arguments import EngineArgumentError
from app.engines.omni.rowchannel import RowReceiver, Rows
from app.settings.schema import StageConfig

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

WORKER = "app.engines.omni.tap.ThinkerWorker"
_LATE_S = 10.0
"""How long the last rows may take after the last token, with which EngineCore has sent them."""
_ONE = {
    "pipeline_parallel_size": "the first stage of the model knows the embeddings, the last one the states",
    "prefill_context_parallel_size": "the positions of a prompt are computed in several places",
    "decode_context_parallel_size": "the positions of a prompt are computed in several places",
}


def judge(stage: StageConfig, args: Namespace) -> None:
    """Refuse vLLM's arguments for a thinker's stage where they are in the way of the tap.

    Raises:
        EngineArgumentError: names the argument.
    """
    where = f"stage {stage.stage_id} ({stage.name}): engine argument"
    for name, reason in _ONE.items():
        if getattr(args, name) not in (None, 1):
            raise EngineArgumentError(f"{where} {name!r} must be 1 where a thinker's answers are spoken: {reason}")
    if args.speculative_config is not None:
        raise EngineArgumentError(
            f"{where} 'speculative_config' is not for a thinker whose answers are spoken: it would hand on tokens "
            "that are taken back; remove it, or serve the model with --deploy-config llm.yaml for text only"
        )
    if args.worker_cls != "auto":
        raise EngineArgumentError(f"{where} 'worker_cls' is ours for a thinker whose answers are spoken; remove it")


class Thinker:
    """Prepares vLLM for the tap and opens a Handover for each request that wants one."""

    def __init__(self, stage: StageConfig, scratch: str = "") -> None:
        self._stage = stage
        self._receiver = RowReceiver(scratch)

    def prepare(self, args: Namespace) -> None:
        """Have vLLM use our worker; to be called before EngineCore is started, which inherits the address.

        Raises:
            EngineArgumentError: an argument is in the way.
        """
        judge(self._stage, args)
        from app.engines.omni import tap

        args.worker_cls = WORKER
        # vLLM keeps compiled graphs by its configuration: those of a thinker that is not tapped return less.
        args.additional_config = {**(args.additional_config or {}), "omni_tap": True}
        os.environ[tap.ADDRESS] = self._receiver.address

    @contextmanager
    def handover(self, request: Request) -> Iterator[Handover]:
        """The way of a request's rows, for the length of the block."""
        handover = Handover(request)
        handover.key = self._receiver.add(handover.take)
        try:
            yield handover
        finally:
            self._receiver.remove(handover.key)

    def close(self) -> None:
        """Let go of the socket; EngineCore has ended."""
        self._receiver.close()


class Handover:
    """Hands the rows of one generation on, each position once and in order.

    vLLM may compute a position too many after the last token (async scheduling, stop strings), so a row waits for the
    token that was sampled from it: both are of one step. Text is never held back, and no row goes before `accept`. What
    goes wrong is said to `stop`.
    """

    def __init__(self, request: Request) -> None:
        self.key = 0
        self.error: EngineError | None = None
        self.stop: Callable[[Exception], None] = lambda _error: None
        self._request = request
        self._prompt = 0
        self._ids: array[int] = array("i")
        self._tokens = 0
        self._next = 0
        self._arrived = 0
        self._waiting: deque[Rows] = deque()
        self._complete = asyncio.Event()
        self._accepted = self._finished = False

    def begin(self, prompt: list[int], params: SamplingParams) -> None:
        """Tap the one generation of the request, that `params` are for."""
        from vllm.sampling_params import RequestOutputKind

        from app.engines.omni.tap import TAP_KEY

        self._prompt = len(prompt)
        self._ids.extend(prompt)
        params.extra_args = {**(params.extra_args or {}), TAP_KEY: self.key}
        params.skip_reading_prefix_cache = True  # what is read from the cache is not computed, and would be missing
        params.output_kind = RequestOutputKind.DELTA  # tokens as they come, also where the answer is sent as a whole

    def accept(self) -> None:
        """The request has been accepted: rows that vLLM was quicker with go on now."""
        self._accepted = True
        self._hand_on()

    def see(self, output: RequestOutput) -> None:
        """What vLLM has generated; called from its output loop."""
        for part in output.outputs:
            self._tokens += len(part.token_ids)
            self._ids.extend(part.token_ids)
        self._finished |= output.finished
        self._hand_on()

    def take(self, rows: Rows) -> None:
        """Rows from the worker."""
        if rows.span.start != self._arrived:
            self._fail(f"the thinker's rows from position {self._arrived} to {rows.span.start} are missing")
            return
        self._arrived += rows.span.count
        self._waiting.append(rows)
        self._hand_on()

    def _hand_on(self) -> None:
        if not self._accepted:
            return
        known = self._prompt + max(self._tokens - 1, 0)
        while self.error is None and self._waiting and self._next < known:
            rows = self._waiting.popleft()
            count = min(rows.span.count, known - self._next)
            if count < rows.span.count:
                self._waiting.appendleft(_after(rows, count))
            self._emit(rows, count)
        if self._finished and self._next == known:
            self._complete.set()

    def _emit(self, rows: Rows, count: int) -> None:
        ids = self._ids[self._next : self._next + count]
        tensors = {
            "token_ids": Tensor("int32", (count,), memoryview(ids).cast("B")),
            "rows": Tensor(rows.dtype, (count, rows.width), rows.data[: count * rows.size]),
        }
        if rows.span.positions:
            tensors["mrope_positions"] = Tensor("int32", (3, self._prompt), memoryview(rows.span.positions))
        self._next += count
        try:
            self._request.emit_tensors(tensors)
        except EngineError as error:
            self._end(error)
        except ValueError as error:
            self._fail(str(error))

    def _fail(self, message: str) -> None:
        self._end(EngineError(Failed(500, message)))

    def _end(self, error: EngineError) -> None:
        if self.error is None:
            self.error = error
            self._waiting.clear()
            self._complete.set()
            self.stop(error)

    async def complete(self) -> None:
        """Wait until everything has been handed on; after the last token.

        Raises:
            EngineError: something went wrong with it.
        """
        try:
            async with asyncio.timeout(_LATE_S):
                await self._complete.wait()
        except TimeoutError:
            self._fail(f"the thinker's rows from position {self._next} on did not come within {_LATE_S:g} s")
        if self.error is not None:
            raise self.error


def _after(rows: Rows, count: int) -> Rows:
    span = type(rows.span)(rows.span.key, rows.span.start + count, rows.span.count - count)
    return Rows(span, rows.dtype, rows.width, rows.data[count * rows.size :])
