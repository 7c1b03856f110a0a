"""vLLM's AsyncLLM with one difference: `generate` returns a Generation, which has not started yet.

That gives us the two moments vLLM hides inside its generator: when the engine has taken a request (so that Accepted can
be told before the first token), and when an output is there (so that plain text needs no task switch per token).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.output_processor import RequestOutputCollector


class Watcher(Protocol):
    """Follows the generation of a request beside whoever reads it. `stop` is set to what ends it with an error."""

    stop: Callable[[Exception], None]

    def begin(self, prompt: list[int], params: SamplingParams) -> None:
        """It is about to be handed to vLLM; `params` may still be changed."""
        ...

    def see(self, output: RequestOutput) -> None:
        """vLLM has made this of it; called from vLLM's output loop, which an exception would end."""
        ...


_current_batch: ContextVar[Batch | None] = ContextVar("current_batch", default=None)


class Generation:
    """One prompt on its way through vLLM: an async iterator of RequestOutput, or the source of a `feed`.

    Iterating counts the tokens of its prompt and of its output; `encoder_tokens` are those of an encoder's prompt.
    `whole`: who iterates wants one output, which is put together of those that vLLM makes for the watcher.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[RequestOutputCollector]],
        admitted: Callable[[], None],
        encoder_tokens: int = 0,
        watcher: Watcher | None = None,
        whole: bool = False,
    ) -> None:
        self._start = start
        self._watcher = watcher
        self._whole = whole
        if watcher is not None:
            watcher.stop = self._fail
        self._failure: Exception | None = None
        self._tell_admitted = admitted
        self._collector: RequestOutputCollector | None = None
        self._early: list[RequestOutput | Exception] = []
        self._taken = False
        self._finished = False
        self.prompt_tokens = self.output_tokens = 0
        self.encoder_tokens = encoder_tokens

    @property
    def admitted(self) -> bool:
        """Whether vLLM has taken the request."""
        return self._collector is not None

    @property
    def running_id(self) -> str | None:
        """vLLM's internal id while there is something to abort."""
        return None if self._collector is None or self._finished else self._collector.request_id

    async def admit(self) -> RequestOutputCollector:
        """Hand the request to vLLM, once.

        Raises:
            Exception: vLLM's reason to refuse it.
        """
        if self._collector is None:
            starting = asyncio.ensure_future(self._hand_over())
            try:
                self._collector = await asyncio.shield(starting)
            except asyncio.CancelledError:
                self._collector = await starting  # vLLM may have it already: close() has to find it
                raise
            self._tell_admitted()
        if self._failure is not None:
            raise self._failure
        return self._collector

    async def _hand_over(self) -> RequestOutputCollector:
        """Until somebody takes the outputs, keep each one: vLLM would merge them, and a token would lose its chunk."""
        collector = await self._start()
        first = collector.get_nowait()  # with n > 1 the first choices run while the last ones are handed over
        self._send_to(collector, self._early.append)
        if first is not None:
            collector.put(first)
        return collector

    def _send_to(self, collector: RequestOutputCollector, put: Callable[[RequestOutput | Exception], None]) -> None:
        collector.put = put if self._watcher is None else partial(_seen, self._watcher, put)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self._collector is not None:
            self._collector.put(error)

    def _give(self, collector: RequestOutputCollector, put: Callable[[RequestOutput | Exception], None]) -> None:
        """Outputs go to `put` from now on, first those that were kept."""
        self._taken = True
        self._send_to(collector, put)
        for output in self._early:
            put(output)
        self._early.clear()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._finished:
            raise StopAsyncIteration
        collector = await self.admit()
        if not self._taken:
            self._give(collector, partial(type(collector).put, collector))
        output = collector.get_nowait() or await collector.get()
        while self._whole and not output.finished:
            output.add(await collector.get(), aggregate=True)
        self._finished = output.finished
        self._count(output)
        return output

    def _count(self, output: RequestOutput) -> None:
        self.prompt_tokens = len(output.prompt_token_ids or ())
        self.output_tokens += sum(len(part.token_ids) for part in output.outputs)

    async def aclose(self) -> None:
        """Nothing to do: the Batch aborts what has not finished."""

    async def feed(self, deliver: Callable[[RequestOutput], None]) -> None:
        """Have vLLM's output loop call `deliver` with every output; return after the last one.

        Raises:
            Exception: what vLLM reports for the request, or what `deliver` raised.
        """
        collector = await self.admit()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def put(output: RequestOutput | Exception) -> None:
            if finished.done():
                return
            try:
                if isinstance(output, Exception):
                    raise output
                deliver(output)
            except Exception as error:  # noqa: BLE001 -- must not reach the output loop, which serves all requests
                finished.set_exception(error)
            else:
                if output.finished:
                    finished.set_result(None)

        self._give(collector, put)
        await finished
        self._finished = True


def _seen(
    watcher: Watcher, put: Callable[[RequestOutput | Exception], None], output: RequestOutput | Exception
) -> None:
    if not isinstance(output, Exception):
        watcher.see(output)
    put(output)


class Batch:
    """The generations of one request of ours; tells once when vLLM has taken all of them.

    Within `with batch:` whatever calls `Frontend.generate` adds to it. A `watcher` follows its only generation.
    """

    def __init__(self, frontend: Frontend, accepted: Callable[[], None], watcher: Watcher | None = None) -> None:
        self.generations: list[Generation] = []
        self._frontend = frontend
        self._tell_accepted: Callable[[], None] | None = accepted
        self.watcher = watcher

    def __enter__(self) -> Batch:
        self._token = _current_batch.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current_batch.reset(self._token)

    def add(
        self, start: Callable[[], Awaitable[RequestOutputCollector]], encoder_tokens: int = 0, *, whole: bool = False
    ) -> Generation:
        generation = Generation(start, self._on_admitted, encoder_tokens, self.watcher, whole)
        self.generations.append(generation)
        return generation

    async def admit(self) -> None:
        """Hand every generation to vLLM.

        Raises:
            Exception: vLLM's reason to refuse one of them.
        """
        for generation in self.generations:
            await generation.admit()

    def _on_admitted(self) -> None:
        if self._tell_accepted is not None and all(generation.admitted for generation in self.generations):
            self._tell_accepted()
            self._tell_accepted = None

    async def close(self) -> None:
        """Abort what still runs."""
        running = [generation.running_id for generation in self.generations if generation.running_id is not None]
        if running and not self._frontend.errored:
            await self._frontend.abort(running, internal=True)


@contextmanager
def apart() -> Iterator[None]:
    """Generations of whatever runs within belong to no Batch: they start at once and end themselves."""
    token = _current_batch.set(None)
    try:
        yield
    finally:
        _current_batch.reset(token)


class Frontend(AsyncLLM):  # type: ignore[misc]
    """The engine client that vLLM's serving classes work with."""

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """As AsyncLLM.generate; lazy and owned by the current Batch where there is one."""
        batch = _current_batch.get()
        if batch is None:
            outputs: AsyncIterator[RequestOutput] = super().generate(prompt, sampling_params, request_id, **options)
            return outputs
        start = partial(self.add_request, request_id, prompt, sampling_params, **options)
        whole = False
        if batch.watcher is not None:
            whole = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
            batch.watcher.begin(prompt["prompt_token_ids"], sampling_params)
        return batch.add(start, _encoder_tokens(prompt), whole=whole)

    async def _add_request(self, request: Any, *args: Any, **options: Any) -> None:
        """vLLM registers a request before it sends it: one that cannot be encoded would count as running for ever."""
        try:
            await super()._add_request(request, *args, **options)
        except BaseException:
            await self.abort(request.request_id, internal=True)
            raise


def _encoder_tokens(prompt: Any) -> int:
    """Positions of the encoder's prompt, which vLLM's outputs do not tell."""
    if not isinstance(prompt, dict) or prompt.get("type") != "enc_dec":
        return 0
    return len(prompt["encoder_prompt"]["prompt_token_ids"])


class StepMeter(StatLoggerBase):  # type: ignore[misc]
    """Counts engine steps and remembers how many sequences the scheduler runs, through vLLM's statistics hook."""

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
        self.steps = 0
        self._running: dict[int, int] = {}

    @property
    def running(self) -> int:
        """Sequences that run, in all engines of data_parallel_size."""
        return sum(self._running.values())

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after every step."""
        self.steps += 1
        if scheduler_stats is not None:
            self._running[engine_idx] = scheduler_stats.num_running_reqs

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
