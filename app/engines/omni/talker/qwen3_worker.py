"""The worker of a Qwen3-Omni talker in vLLM: after each step it completes the frames whose first codes were sampled.

Nothing of vLLM is patched: it is a `worker_cls`. With a CPU's worker both of vLLM's runners have been run (the second
one by Triton's interpreter: tests/parity/second_runner.py); with a GPU's, which is written to the source of vLLM 0.32,
none has. What vLLM does not promise is watched by tests/engines/omni/test_guards_qwen3.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.outputs import AsyncModelRunnerOutput

from app.engines.omni.platformworker import PLATFORM_WORKER
from app.engines.omni.rowchannel import RowSender, Span, Step
from app.engines.omni.talker.frames import ADDRESS, Frames


class FrameWorker(PLATFORM_WORKER):  # type: ignore[misc]
    """The platform's worker, of a stage with engine arguments as app.engines.omni.talker.qwen3 has them.

    Of the workers that share one model by tensor parallelism all predict the same frames, and the first sends them.
    """

    _sampled_from: tuple[Sequence[str], torch.Tensor] | None = None

    def load_model(self, *args: Any, **options: Any) -> None:
        """Load the model and tell it where to find what it hears.

        Raises:
            ValueError: the stage is spread over several GPUs in a way that the frames cannot follow.
        """
        if self.parallel_config.pipeline_parallel_size > 1:
            raise ValueError(
                "a Qwen3-Omni talker cannot be split by layers: what its last layer makes goes into its first. "
                "Leave --pipeline-parallel-size of its stage at 1; --tensor-parallel-size splits it."
            )
        super().load_model(*args, **options)
        self._frames = Frames(self.device)
        self._sender = RowSender(os.environ[ADDRESS]) if get_tensor_model_parallel_rank() == 0 else None
        self._talker = self.model_runner.get_model()
        self._talker.listen(self._frames, self._batch)

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step; what was sampled from is kept until its codes are known."""
        self._frames.begin_step(scheduler_output)
        output = super().execute_model(scheduler_output)
        state = self.model_runner.execute_model_state
        self._sampled_from = None if output is not None or state is None else self._last_rows(state)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """The first codes, and with them the rest of their frames, which the next step needs."""
        sampled_from, self._sampled_from = self._sampled_from, None
        output = super().sample_tokens(grammar_output)
        if sampled_from is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            output = output.get_output()
        self._complete(*sampled_from, output.sampled_token_ids)
        return output

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _complete(self, request_ids: Sequence[str], rows: torch.Tensor, sampled: Sequence[Sequence[int]]) -> None:
        stop = self._talker.stop
        said = {
            index: ids[0]
            for index, (request_id, ids) in enumerate(zip(request_ids, sampled, strict=True))
            if ids and ids[0] != stop and request_id in self._frames
        }
        if not said:
            return
        speaking = [request_ids[index] for index in said]
        voices = self._frames.voices(speaking)
        codes = torch.tensor(list(said.values()), device=rows.device)
        frames = self._talker.complete(rows[list(said)], codes, [voice.generator for voice in voices]).int().cpu()
        self._frames.add(speaking, frames.tolist())
        if self._sender is not None:
            spans = [Span(voice.key, len(voice.frames) - 1, 1) for voice in voices]
            self._sender.send(Step("int32", frames.shape[1], spans), memoryview(frames.numpy()).cast("B"))

    def _batch(self) -> Sequence[str]:
        """The requests of the step that is made, as their rows lie in it; qwen3_state.py is the second runner's."""
        request_ids: Sequence[str] = self.model_runner.input_batch.req_ids
        return request_ids

    def _last_rows(self, state: Any) -> tuple[Sequence[str], torch.Tensor]:
        """The requests of a step and their last hidden rows."""
        if hasattr(state, "input_batch"):
            batch = state.input_batch
            return list(batch.req_ids), state.hidden_states[batch.logits_indices]
        return list(self._batch()), state.sample_hidden_states
