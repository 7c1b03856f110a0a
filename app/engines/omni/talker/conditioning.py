"""How a talker's conditioning reaches its model through vLLM: as a multimodal item that covers what is still to come.

vLLM compares the ranges of multimodal items with the positions that it computes, not with the length of the prompt. So
one item of the modality "conditioning" carries a row for each position of its chunk, those that will be decoded too,
and the model gets the rows of the positions of each step. tests/engines/omni/talker/test_guards.py guards that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from app.engines.omni.talker.family import Chunk

if TYPE_CHECKING:
    from vllm.inputs.engine import MultiModalInput
    from vllm.multimodal.inputs import MultiModalFeatureSpec

MODALITY = "conditioning"
WIDTH = "conditioning_width"
"""Attribute of the talker's configuration: columns of its rows."""


def engine_input(prompt_token_ids: Sequence[int], chunk: Chunk, name: str) -> MultiModalInput:
    """What vLLM takes: the chunk's rows at the prompt's positions and on from there. `name` is unique in the engine."""
    positions = torch.zeros(3, 1, dtype=torch.int64) if chunk.positions is None else chunk.positions.contiguous()
    item = MultiModalKwargsItem(
        {
            "rows": MultiModalFieldElem(data=chunk.rows, field=MultiModalBatchedField()),
            "positions": MultiModalFieldElem(data=positions, field=MultiModalBatchedField(keep_on_cpu=True)),
        }
    )
    return {
        "type": "multimodal",
        "prompt_token_ids": list(prompt_token_ids),
        "mm_kwargs": MultiModalKwargsItems({MODALITY: [item]}),
        "mm_hashes": {MODALITY: [name]},
        "mm_placeholders": {MODALITY: [PlaceholderRange(offset=0, length=len(chunk.rows))]},
    }


def mrope_positions(length: int, features: Sequence[MultiModalFeatureSpec]) -> tuple[torch.Tensor, int]:
    """Of a session's first `length` positions, int64 [3, length], and how far those after them are from their index.

    The first chunk's item has the positions of the thinker's prompt; all after them count up by one.
    """
    data = features[0].data if features else None
    known = torch.zeros(3, 0, dtype=torch.int64) if data is None else data["positions"].data[:, :length]
    following = int(known.max()) + 1 if known.shape[1] else 0
    delta = following - known.shape[1]
    rest = torch.arange(known.shape[1] + delta, length + delta).expand(3, -1)
    return torch.cat((known, rest), dim=1), delta


def rows_of(arguments: Mapping[str, Any]) -> list[torch.Tensor]:
    """The rows of each item [n, width], of the arguments of embed_multimodal: they are what they are."""
    return list(arguments.get("rows", ()))


def gathered(rows: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
    """Rows that vLLM has gathered for a step, one below the other; None where it has none."""
    return torch.cat(tuple(rows)) if rows is not None and len(rows) else None


class ConditioningInfo(BaseProcessingInfo):  # type: ignore[misc]
    """An item can be as long as a request."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {MODALITY: seq_len}


class ConditioningDummy(BaseDummyInputsBuilder):  # type: ignore[misc]
    """ConditioningProcessor makes the dummy itself."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> dict[str, Any]:
        return {}


class ConditioningProcessor(BaseMultiModalProcessor):  # type: ignore[misc]
    """Nothing is processed: engine_input makes what a processor would."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> dict[str, Any]:
        return {}

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        return []

    def get_dummy_mm_inputs(self, mm_counts: Any, *args: Any, **options: Any) -> MultiModalInput:
        """An item as long as any, which vLLM measures the memory with."""
        config = self.info.ctx.model_config
        return engine_input([0], Chunk(torch.zeros(config.max_model_len, getattr(config.hf_config, WIDTH))), "dummy")
