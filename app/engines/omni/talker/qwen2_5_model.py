"""The talker of Qwen2.5-Omni as a vLLM model: a small Llama with biases that is conditioned on a row at each position.

At a position the model reads what the thinker made, plus, but for the thinker's prompt, the embedding of the codec id
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY

from app.engines.omni.talker.conditioning import (
    ConditioningDummy,
    ConditioningInfo,
    ConditioningProcessor,
    gathered,
)
from app.engines.omni.talker.model import Talker

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# M-RoPE positions are [3, n]: the last dimension is the one that changes, where LlamaModel says the first.
@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class _Body(LlamaModel):  # type: ignore[misc]
    """The layers; its codec embeddings are as wide as the thinker's rows, and no layer is."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        name = maybe_prefix(prefix, "embed_tokens")
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.embedding_size, prefix=name)


@MULTIMODAL_REGISTRY.register_processor(ConditioningProcessor, info=ConditioningInfo, dummy_inputs=ConditioningDummy)
class Qwen2_5OmniTalker(Talker):  # noqa: N801
    """Conditioning rows are [n, embedding_size + 1]; the last column is 1 where the codec embedding is added, else 0.
    Positions without a row, those after the last chunk, hear the text's padding.
    """

    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"talker.": "", "thinker.": None, "token2wav.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.model = _Body(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.thinker_to_talker_proj = nn.Linear(config.embedding_size, config.hidden_size)
        self.codec_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "codec_head")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.kept_tokens = [config.tts_text_pad_token_id]
        self.register_buffer("padding", torch.zeros(config.embedding_size), persistent=False)
        self.register_buffer("unspeakable", _unspeakable(config), persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What the layers read: [n, hidden_size], of codec ids [n] and the rows that vLLM has gathered for them."""
        codec = self.model.embed_tokens(input_ids)
        conditioning = self.padding.expand_as(codec)
        rows = gathered(multimodal_embeddings)
        if rows is not None:
            assert is_multimodal is not None
            here = is_multimodal.nonzero()[:, 0].to(codec.device, non_blocking=True)
            rows = rows.to(codec)
            conditioning = conditioning.index_copy(0, here, rows[:, :-1])
            codec = codec * torch.ones_like(codec[:, :1]).index_copy(0, here, rows[:, -1:])
        projected: torch.Tensor = self.thinker_to_talker_proj(codec + conditioning)
        return projected

    def keep_rows(self, rows: torch.Tensor) -> None:
        """The row that the talker hears when the thinker has ended."""
        self.padding.copy_(rows[0])


def _unspeakable(config: Any) -> torch.Tensor:
    """Which ids are never sampled, bool [vocab_size]: the one that begins speech, as in transformers, and those that
    neither end it nor are known to the vocoder, with which transformers would fail."""
    ids = torch.arange(config.vocab_size)
    ends = (ids == config.tts_codec_end_token_id) | (ids == config.tts_codec_pad_token_id)
    return (ids == config.tts_codec_start_token_id) | ((ids >= config.codec_ids) & ~ends)
