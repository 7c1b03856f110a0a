"""One talker's speech in vLLM: a session of streaming input that goes on with whatever the thinker has made by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import RequestOutputKind

from app.engines.llm.errors import bad_request
from app.engines.omni.talker.conditioning import engine_input
from app.engines.omni.talker.room import Room
from app.engines.omni.talker.sampling import TalkerSampling
from app.engines.omni.talker.supply import Supply

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput

    from app.engines.llm.frontend import Frontend
    from app.engines.omni.talker.family import Chunk


class Session:
    """`name` is unique in the engine. `active`: vLLM has something to do. `queued`: the session waits for room in vLLM.
    Else it waits for its thinker.

    vLLM takes a chunk of input, samples as many ids as its max_tokens says, and waits for the next one; each of ours
    allows as many as it has rows for. The last id of a chunk has not been computed when the chunk ends, and vLLM drops
    it: the next one begins with it.
    """

    def __init__(
        self,
        frontend: Frontend,
        room: Room,
        name: str,
        sampling: TalkerSampling,
        stop_token_ids: Sequence[int],
        extra_args: Mapping[str, Any],
    ) -> None:
        self.active = self.queued = False
        self._frontend = frontend
        self._room = room
        self._name = name
        self._sampling = sampling
        self._stop_token_ids = list(stop_token_ids)
        self._extra_args = dict(extra_args)
        self._inputs: asyncio.Queue[StreamingInput | None] = asyncio.Queue()
        self._chunks = 0
        self._last_id: int | None = None
        self._left = sampling.max_tokens

    async def sampled(self, supply: Supply) -> AsyncGenerator[list[int], None]:
        """The ids as vLLM samples them, the one that ends the speech among them; none where there is nothing to say.

        Raises:
            EngineError: 400, the prompt leaves no room for speech; or of the supply.
            Exception: vLLM's, EngineDeadError among them.
        """
        first = await supply.chunk()
        if first is None:
            return
        self._check_length(first.prompt_token_ids)
        self.queued = True
        try:
            async with self._room.hold(len(first.prompt_token_ids) + self._left + 1):
                self.queued = False
                async with aclosing(self._talk(first, supply)) as talk:
                    async for ids in talk:
                        yield ids
        finally:
            self.queued = False

    async def _talk(self, first: Chunk, supply: Supply) -> AsyncGenerator[list[int], None]:
        budget = self._go_on(first)
        async with aclosing(self._generate(budget)) as outputs:
            try:
                async for output in outputs:
                    part = output.outputs[0]
                    ids = list(part.token_ids)
                    budget -= len(ids)
                    self._left -= len(ids)
                    self._last_id = ids[-1] if ids else self._last_id
                    self.active = part.finish_reason is None
                    if ids:
                        yield ids
                    if part.finish_reason is None:
                        continue
                    if self._is_over(part, budget) or (chunk := await supply.chunk()) is None:
                        return
                    budget = self._go_on(chunk)
            finally:
                self.active = False

    def _generate(self, budget: int) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of the session; closing it aborts what still runs."""
        outputs = self._frontend.generate(self._stream(), self._params(budget), self._name)
        return cast("AsyncGenerator[RequestOutput, None]", outputs)

    def _is_over(self, part: CompletionOutput, budget: int) -> bool:
        """At the end of a chunk: it said the last word, is the last one, or vLLM has no room for all that it allows.

        Raises:
            RuntimeError: vLLM has given it up.
        """
        if part.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended the speech: {part.finish_reason}")
        return part.finish_reason != "length" or budget > 0 or self._left <= 0

    def _go_on(self, chunk: Chunk) -> int:
        """Hand vLLM the next chunk; how many ids it may sample then."""
        prompt = list(chunk.prompt_token_ids) if self._last_id is None else [self._last_id]
        rows_allow = len(chunk.rows) - len(prompt) + 1
        budget = self._left if chunk.last else min(rows_allow, self._left)
        self._chunks += 1
        item = engine_input(prompt, chunk, f"{self._name}-{self._chunks}")
        self._inputs.put_nowait(StreamingInput(item, self._params(budget)))
        if chunk.last or budget == self._left:
            self._inputs.put_nowait(None)
        self.active = True
        return budget

    def _check_length(self, prompt: Sequence[int]) -> None:
        most = self._frontend.model_config.max_model_len
        if len(prompt) >= most:
            message = f"this conversation has {len(prompt)} tokens, and the talker speaks of less than {most}"
            raise bad_request(message, param="messages", code="context_length_exceeded")

    async def _stream(self) -> AsyncGenerator[StreamingInput, None]:
        while (given := await self._inputs.get()) is not None:
            yield given

    def _params(self, max_tokens: int) -> SamplingParams:
        chosen = self._sampling
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            repetition_penalty=chosen.repetition_penalty,
            seed=chosen.seed,
            stop_token_ids=self._stop_token_ids,
            ignore_eos=True,  # the end of the checkpoint's generation_config.json is the thinker's
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=self._extra_args or None,
        )
