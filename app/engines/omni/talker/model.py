"""What every talker is as a model of vLLM, whatever its layers are. Nothing of vLLM is patched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal, SupportsRealtime
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from app.engines.omni.talker.checkpoint import EMBEDDINGS
from app.engines.omni.talker.conditioning import mrope_positions, rows_of

if TYPE_CHECKING:
    from vllm.multimodal.inputs import MultiModalFeatureSpec

_PART = "talker."


class Talker(nn.Module, SupportsMultiModal, SupportsMRoPE, SupportsRealtime):  # type: ignore[misc]
    """It reads conditioning rows, which come as a multimodal item (app.engines.omni.talker.conditioning), and samples
    codec ids. A talker's `__init__` makes `model`, `codec_head`, `logits_processor`, and `unspeakable`, a bool buffer
    [vocab_size] of the ids that are never sampled; and it names the tokens whose rows of the thinker's embeddings
    `keep_rows` is given.

    SupportsRealtime is what makes vLLM's GPU runner gather rows while it decodes, as it does for Voxtral's realtime
    model.
    """

    realtime_max_tokens = 1
    hf_to_vllm_mapper: WeightsMapper
    kept_tokens: Sequence[int] = ()

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Rows [len(kept_tokens), width] of the thinker's embeddings, once everything else is loaded."""

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

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """vLLM does not read files that have such weights only: most of a checkpoint is the thinker."""
        return not name.startswith(_PART) and name != EMBEDDINGS

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        kept: list[torch.Tensor] = []
        loader = AutoWeightsLoader(self)
        loaded: set[str] = loader.load_weights(self._passing(weights, kept), mapper=self.hf_to_vllm_mapper)
        for rows in kept:
            self.keep_rows(rows)
        return loaded

    def _passing(
        self, weights: Iterable[tuple[str, torch.Tensor]], kept: list[torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in weights:
            if name == EMBEDDINGS:
                kept.append(weight[list(self.kept_tokens)])
            yield name, weight
