"""What vLLM's second runner, that of GPUs, asks a Qwen3-Omni talker about its inputs."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState


class Qwen3TalkerState(DefaultModelState):  # type: ignore[misc]
    """Tells the talker whose rows a step has before it embeds them."""

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: Any, req_states: Any
    ) -> torch.Tensor:
        """The inputs of a step, [tokens, hidden_size], padded."""
        self.model.batch = lambda: input_batch.req_ids
        inputs: torch.Tensor = super().prepare_inputs_embeds(scheduled_encoder_inputs, input_batch, req_states)
        return inputs
