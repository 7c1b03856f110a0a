"""Qwen3-Omni's talker as a vLLM model: a mixture of experts that hears frames of codes and says the first one of each.

The other codes of a frame are predicted in the worker (qwen3_worker.py), which also tells what each position hears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY

from app.engines.omni.talker.conditioning import (
    ConditioningDummy,
    ConditioningInfo,
    ConditioningProcessor,
    gathered,
)
from app.engines.omni.talker.frames import Frames
from app.engines.omni.talker.model import Talker
from app.engines.omni.talker.predictor import CodePredictor
from app.engines.omni.talker.qwen3_utterance import EXTRA, Side

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_CONTROL_CODES = 1024


class Projection(nn.Module):  # type: ignore[misc]
    """From the thinker's rows [n, thinker_hidden_size] to the talker's [n, hidden_size]."""

    def __init__(self, talker: Any) -> None:
        super().__init__()
        text = talker.text_config
        self.linear_fc1 = nn.Linear(talker.thinker_hidden_size, text.intermediate_size)
        self.linear_fc2 = nn.Linear(text.intermediate_size, text.hidden_size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(rows)))
        return projected


# M-RoPE positions are [3, n]: the last dimension is the one that changes, where Qwen3MoeModel says the first.
@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class _Body(Qwen3MoeModel):  # type: ignore[misc]
    """The layers."""


@MULTIMODAL_REGISTRY.register_processor(ConditioningProcessor, info=ConditioningInfo, dummy_inputs=ConditioningDummy)
class Qwen3OmniTalker(Talker):
    """Conditioning rows are [n, thinker_hidden_size + 2], as qwen3_utterance.py makes them. Positions without a row,
    those after the last chunk, read the row of the text's padding.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "talker.model.codec_embedding.": "model.embed_tokens.",
            "talker.": "",
            "thinker.": None,
            "code2wav.": None,
        },
        orig_to_new_stacked=Qwen3MoeModel.hf_to_vllm_mapper.orig_to_new_stacked,
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        talker = config.talker
        self.config = config
        self.stop = talker.codec_eos_token_id
        self.model = _Body(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.text_projection = Projection(talker)
        self.hidden_projection = Projection(talker)
        self.code_predictor = CodePredictor(talker.code_predictor_config)
        name = maybe_prefix(prefix, "codec_head")
        self.codec_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=name)
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.kept_tokens = config.own_rows
        self.register_buffer("own_rows", torch.zeros(len(config.own_rows), config.hidden_size), persistent=False)
        self.register_buffer("unspeakable", _unspeakable(config), persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self._frames: Frames | None = None
        self.batch: Callable[[], Sequence[str]] = list
        """The requests of the step that is being made, as their rows lie in it."""

    def listen(self, frames: Frames, batch: Callable[[], Sequence[str]]) -> None:
        """What was said before is in `frames` from now on; until then, as in vLLM's trial runs, nothing was said."""
        self._frames, self.batch = frames, batch

    @staticmethod
    def get_model_state_cls() -> type[Any]:
        """For vLLM's second runner; the first asks for none."""
        from app.engines.omni.talker.qwen3_state import Qwen3TalkerState

        return Qwen3TalkerState

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What the layers read: [n, hidden_size], of codec ids [n] and the rows that vLLM has gathered for them."""
        inputs = self.own_rows[:1].repeat(len(input_ids), 1)
        rows = gathered(multimodal_embeddings)
        if rows is not None:
            assert is_multimodal is not None
            here = is_multimodal.nonzero()[:, 0].to(inputs.device, non_blocking=True)
            inputs[here] = self._read(rows.to(inputs), input_ids[here])
        if self._frames is not None:
            self._hear(inputs, *self._frames.heard(self.batch()))
        return inputs

    def complete(
        self, rows: torch.Tensor, codes: torch.Tensor, generators: Sequence[torch.Generator | None]
    ) -> torch.Tensor:
        """Frames, int64 [n, groups], of their first codes [n] and the last hidden rows [n, hidden_size] that they were
        sampled from. `generators` as in CodePredictor.predict."""
        residual = self.code_predictor.predict(rows, self.model.embed_tokens(codes), generators)
        return torch.cat((codes[:, None], residual), dim=1)

    def _hear(self, inputs: torch.Tensor, places: Sequence[int], frames: Sequence[Sequence[int]]) -> None:
        if places:
            codes = torch.tensor(frames, device=inputs.device)
            heard = self.model.embed_tokens(codes[:, 0]) + self.code_predictor.embed(codes[:, 1:])
            inputs.index_add_(0, torch.tensor(places, device=inputs.device), heard)

    def _read(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Both sides of conditioning rows [n, thinker_hidden_size + 2] at the codec ids [n]: [n, hidden_size]."""
        made, sides, gates = rows[:, :-EXTRA], rows[:, -EXTRA, None], rows[:, -1:]
        # All of them by each: which are which is known on the device only, and asking would wait for it.
        text = torch.where(sides == Side.SENSES, self.hidden_projection(made), self.text_projection(made))
        own = self.own_rows[(sides[:, 0].long() - Side.TTS_PAD).clamp_min(0)]
        return torch.where(sides < Side.TTS_PAD, text, own) + gates * self.model.embed_tokens(ids)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def keep_rows(self, rows: torch.Tensor) -> None:
        """Rows of the text's padding, beginning and end, projected once for all."""
        self.own_rows.copy_(self.text_projection(rows.to(self.own_rows)))


def _unspeakable(config: Any) -> torch.Tensor:
    """Which ids are never sampled, bool [vocab_size]: the last ones are no sounds, and but for the one that ends speech
    transformers lets none of them be said; nor those that the code predictor and the vocoder have no embedding of."""
    ids = torch.arange(config.vocab_size)
    talker = config.talker
    sounds = min(config.vocab_size - _CONTROL_CODES, talker.code_predictor_config.vocab_size)
    return (ids >= sounds) & (ids != talker.codec_eos_token_id)
