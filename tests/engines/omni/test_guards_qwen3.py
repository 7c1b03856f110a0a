"""What Qwen3-Omni's talker leans on in vLLM without vLLM having promised it. What fails here says what has changed with
a new version; tests/parity/test_talker_qwen3.py shows whether the frames are still right. What it shares with other
stages is in test_guards.py and test_guards_talker.py."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import SchedulerConfig
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import WeightsMapper
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.engines.omni.test_guards import RUNNERS, fields_of, source_of


def test_the_first_runner_keeps_the_rows_that_it_samples_from() -> None:
    state = fields_of(RUNNERS["first"], "ExecuteModelState")
    assert "sample_hidden_states" in state, "a step's last rows have another name"
    assert "input_batch" not in state, "the runners cannot be told apart by it any more"


def test_the_second_runner_says_where_the_rows_lie_that_it_samples_from() -> None:
    batch = fields_of("vllm.v1.worker.gpu.input_batch", "InputBatch")
    assert {"req_ids", "logits_indices"} <= batch, "a step's requests or its last rows have other names"


def test_the_second_runner_asks_a_model_for_its_state_and_that_for_the_inputs() -> None:
    assert "get_model_state_cls" in source_of("vllm.v1.worker.gpu.model_states"), "a model's own state is not asked for"
    default = source_of("vllm.v1.worker.gpu.model_states.default")
    assert "def prepare_inputs_embeds(" in default, "inputs are made elsewhere"


def test_the_first_runner_embeds_in_the_order_of_its_batch_after_that_is_settled() -> None:
    """Of a model that takes multimodal items: at each step, whether one has come or not."""
    made = inspect.getsource(GPUModelRunner._preprocess)
    assert "self.model.embed_input_ids(" in made, "the first runner embeds elsewhere"
    whole = inspect.getsource(GPUModelRunner.execute_model)
    calls = ["self._update_states(", "self._prepare_inputs(", "self._preprocess("]
    places = [whole.index(call) for call in calls]
    assert places == sorted(places), "inputs are embedded before it is settled how requests lie in the batch"


def test_a_worker_samples_in_a_call_of_its_own() -> None:
    assert list(inspect.signature(gpu_worker.Worker.sample_tokens).parameters) == ["self", "grammar_output"]
    assert hasattr(AsyncModelRunnerOutput, "get_output"), "what is sampled asynchronously is read in another way"
    assert "sampled_token_ids" in ModelRunnerOutput.__dataclass_fields__, "sampled ids have another name"


def test_steps_can_be_taken_one_after_the_other() -> None:
    assert SchedulerConfig.__dataclass_fields__["async_scheduling"], "vLLM always plans a step before the last is over"


def test_a_sessions_next_chunk_keeps_what_was_computed_and_drops_the_id_that_was_not() -> None:
    """So the position of a frame never changes, and a chunk's first id is the one that was sampled last."""
    session: Any = SimpleNamespace(
        num_computed_tokens=4,
        num_prompt_tokens=3,
        prompt_token_ids=[1, 2, 3],
        _all_token_ids=[1, 2, 3, 4, 5],
        _output_token_ids=[4, 5],
        block_hashes=[],
        mm_features=[],
        status=None,
        update_block_hashes=lambda: None,
    )
    update: Any = SimpleNamespace(
        mm_features=[], prompt_token_ids=[5], arrival_time=0.0, sampling_params=None, max_tokens=1
    )
    scheduler: Any = SimpleNamespace(hash_block_size=16, log_stats=False, num_waiting_for_streaming_input=0)
    Scheduler._update_request_as_session(scheduler, session, update)
    assert session.prompt_token_ids == [1, 2, 3, 4, 5]
    assert session.num_computed_tokens == 4


def test_stacked_weights_say_which_part_they_are() -> None:
    mapper = WeightsMapper(orig_to_new_stacked=Qwen3MoeModel.hf_to_vllm_mapper.orig_to_new_stacked)
    names = {"a.q_proj": ("a.qkv_proj", "q"), "a.mlp.up_proj": ("a.mlp.gate_up_proj", 1)}
    for name, (stacked, shard) in names.items():
        ((mapped, weight),) = mapper.apply([(name, torch.zeros(1))])
        assert (mapped, weight.shard_id) == (stacked, shard), "vLLM's loader marks stacked weights in another way"


@pytest.mark.parametrize("name", ["shared_expert", "shared_expert_gate", "q_norm", "k_norm"])
def test_layers_of_qwen3_have_what_the_talkers_have(name: str) -> None:
    assert f"self.{name} = " in source_of("vllm.model_executor.models.qwen3_moe"), f"its layers have no {name} any more"


def test_rows_draw_from_generators_of_their_own() -> None:
    probabilities = torch.full((2, 64), 1 / 64)
    drawn = [
        random_sample(probabilities.clone(), {row: torch.Generator().manual_seed(seed) for row, seed in seeds})
        for seeds in (((0, 1), (1, 2)), ((0, 2), (1, 1)))
    ]
    assert drawn[0].tolist() == drawn[1].flip(0).tolist(), "a row's draw depends on more than its generator"
    kept = apply_top_k_top_p(torch.arange(4.0)[None], torch.tensor([3]), torch.tensor([0.6])).isfinite()
    assert kept.tolist() == [[False, False, False, True]], "top_k and top_p keep others than in transformers"
