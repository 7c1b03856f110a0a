"""The code predictor against transformers' on the same random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration as Reference
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import AutoWeightsLoader

from app.engines.omni.talker.predictor import TOP_K, CodePredictor
from tests.parity.qwen3_talker import residual_codes

GROUPS = 16
ROWS = 5


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.manual_seed(0)
    config = Qwen3OmniMoeTalkerCodePredictorConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_code_groups=GROUPS,
        initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    model = Reference(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def predictor(reference: Any) -> CodePredictor:
    made = CodePredictor(reference.config).eval()
    loaded = AutoWeightsLoader(made).load_weights(
        reference.state_dict().items(), mapper=Qwen3MoeModel.hf_to_vllm_mapper
    )
    assert loaded == set(made.state_dict()), "a weight is missing in the checkpoint's names"
    return made


@pytest.fixture(scope="module")
def hidden() -> torch.Tensor:
    return torch.randn(ROWS, 48, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def first() -> torch.Tensor:
    return torch.randn(ROWS, 48, generator=torch.Generator().manual_seed(2))


def greedy(predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return predictor.predict(hidden, first, [None] * len(hidden))


def seeded(*seeds: int) -> list[torch.Generator | None]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_likeliest_codes_equal_transformers_for_each_of_many_rows(
    reference: Any, predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor
) -> None:
    codes = greedy(predictor, hidden, first)
    assert torch.equal(codes, torch.tensor([residual_codes(reference, hidden[row], first[row]) for row in range(ROWS)]))
    assert len(codes.unique()) > GROUPS, "codes that hardly differ prove nothing"


def test_the_sum_of_embeddings_equals_that_of_transformers(reference: Any, predictor: CodePredictor) -> None:
    codes = torch.randint(96, (ROWS, GROUPS - 1), generator=torch.Generator().manual_seed(3))
    tables = reference.get_input_embeddings()
    wanted = torch.stack([table(codes[:, index]) for index, table in enumerate(tables)], dim=1).sum(1)
    torch.testing.assert_close(predictor.embed(codes), wanted)


def test_drawn_codes_depend_on_a_rows_own_generator_only(
    predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor
) -> None:
    together = predictor.predict(hidden, first, seeded(1, 2, 3, 4, 5))
    alone = predictor.predict(hidden[2:3], first[2:3], seeded(3))
    assert torch.equal(together[2:3], alone)
    assert not torch.equal(predictor.predict(hidden[2:3], first[2:3], seeded(4)), alone)


def test_rows_that_draw_and_rows_that_do_not_share_a_call(
    predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor
) -> None:
    mixed = predictor.predict(hidden[:2], first[:2], [None, *seeded(7)])
    assert torch.equal(mixed[0], greedy(predictor, hidden, first)[0])
    assert torch.equal(mixed[1], predictor.predict(hidden[1:2], first[1:2], seeded(7))[0])


def test_only_likely_codes_are_drawn(
    reference: Any, predictor: CodePredictor, hidden: torch.Tensor, first: torch.Tensor
) -> None:
    logits = reference(inputs_embeds=torch.stack((hidden[0], first[0]))[None], use_cache=False).logits[0, -1]
    likely = set(logits.topk(TOP_K).indices.tolist())
    rows = [hidden[:1].expand(64, -1), first[:1].expand(64, -1)]
    drawn = set(predictor.predict(*rows, seeded(*range(64)))[:, 0].tolist())
    assert drawn <= likely
    assert len(drawn) > 1, "always the same code is no draw"
