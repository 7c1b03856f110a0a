"""The talker of Qwen2.5-Omni as a vLLM model: a small Llama with biases that is conditioned on a row at each position.

At a position the model reads what the thinker made, plus, but for the thinker's prompt, the embedding of the codec id
there. Nothing of vLLM is patched: the rows come as a multimodal item (app.engines.omni.talker.conditioning).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal, SupportsRealtime
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY

from app.engines.omni.talker.conditioning import (
    ConditioningDummy,
    ConditioningInfo,
    ConditioningProcessor,
    gathered,
    mrope_positions,
    rows_of,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.multimodal.inputs import MultiModalFeatureSpec

_PAD_ROWS = "thinker.model.embed_tokens.weight"


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
class Qwen2_5OmniTalker(nn.Module, SupportsMultiModal, SupportsMRoPE, SupportsRealtime):  # type: ignore[misc] # noqa: N801
    """Conditioning rows are [n, embedding_size + 1]; the last column is 1 where the codec embedding is added, else 0.

    Positions without a row, those after the last chunk, hear the text's padding. SupportsRealtime is what makes vLLM's
    GPU runner gather rows while it decodes, as it does for Voxtral's realtime model.
    """

    realtime_max_tokens = 1
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
        self.register_buffer("padding", torch.zeros(config.embedding_size), persistent=False)
        self.register_buffer("unspeakable", _unspeakable(config), persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def get_language_model(self) -> nn.Module:
        return self.model

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        return None

    @classmethod
    def buffer_realtime_audio(cls, *args: Any) -> AsyncGenerator[Any, None]:
        """vLLM's own realtime route is not served.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    def embed_multimodal(self, **arguments: Any) -> list[torch.Tensor]:
        return rows_of(arguments)

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

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[MultiModalFeatureSpec]
    ) -> tuple[torch.Tensor, int]:
        return mrope_positions(len(input_tokens), mm_features)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        return self.model(None, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = self.logits_processor(self.codec_head, hidden_states)
        return None if logits is None else logits.masked_fill(self.unspeakable, -torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(self._seen(weights), mapper=self.hf_to_vllm_mapper)
        return loaded

    def _seen(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """All of them; on their way past, the row of the thinker's that the talker hears when it has ended."""
        for name, weight in weights:
            if name == _PAD_ROWS:
                self.padding.copy_(weight[self.config.tts_text_pad_token_id])
            yield name, weight


def _unspeakable(config: Any) -> torch.Tensor:
    """Which ids are never sampled, bool [vocab_size]: the one that begins speech, as in transformers, and those that
    neither end it nor are known to the vocoder, with which transformers would fail."""
    ids = torch.arange(config.vocab_size)
    ends = (ids == config.tts_codec_end_token_id) | (ids == config.tts_codec_pad_token_id)
    return (ids == config.tts_codec_start_token_id) | ((ids >= config.codec_ids) & ~ends)
