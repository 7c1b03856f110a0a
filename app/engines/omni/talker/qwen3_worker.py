"""vLLM's worker of a Qwen3-Omni talker: after each step it predicts the rest of the frames whose first codes were sampled.

It is what `worker_cls` is for; nothing of vLLM is patched. That runs here are the CPU's worker and its runner (V1);
GPUs and the V2 runner are written to vLLM 0.32's source and have not been run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.outputs import AsyncModelRunnerOutput

from app.engines.omni.talker.framechannel import FrameSender
from app.engines.omni.talker.frames import Frames


def _platforms_worker() -> type[Any]:
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    return Worker


class FrameWorker(_platforms_worker()):  # type: ignore[misc]
    """Of a stage with engine arguments as app.engines.omni.talker.qwen3 makes them."""

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
        self._sender = FrameSender() if self.rank == 0 else None
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
        frames = self._talker.complete(rows[list(said)], codes, [voice.generator for voice in voices]).tolist()
        self._frames.add(speaking, frames)
        if self._sender is not None:
            self._sender.send((voice.destination, frame) for voice, frame in zip(voices, frames, strict=True))

    def _batch(self) -> Sequence[str]:
        """The requests of the step that is being made, as their rows lie in it; the V2 runner tells the model itself."""
        request_ids: Sequence[str] = self.model_runner.input_batch.req_ids
        return request_ids

    def _last_rows(self, state: Any) -> tuple[Sequence[str], torch.Tensor]:
        """The requests of a step and their last hidden rows."""
        if hasattr(state, "input_batch"):
            batch = state.input_batch
            return list(batch.req_ids), state.hidden_states[batch.logits_indices]
        return list(self._batch()), state.sample_hidden_states
