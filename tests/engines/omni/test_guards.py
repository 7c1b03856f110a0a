"""What the thinker's tap leans on in vLLM without vLLM having promised it. What fails here says what a new version has
changed; tests/parity/test_thinker.py shows whether the rows are still right."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from vllm.model_executor.models.interfaces import EagleModelMixin, supports_eagle3
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker import gpu_model_runner, gpu_worker

from app.engines.omni import torchvisionless

RUNNERS = {"first": "vllm.v1.worker.gpu_model_runner", "second": "vllm.v1.worker.gpu.model_runner"}


def source_of(module: str) -> str:
    """Not imported: vLLM's second runner does not run on a CPU."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def assigned(module: str) -> set[str]:
    """The attributes that a module's code sets on `self`."""
    nodes = ast.walk(ast.parse(source_of(module)))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in ast.walk(ast.parse(source_of(module))) if isinstance(node, ast.AnnAssign)]
    return {target.attr for target in targets if isinstance(target, ast.Attribute)}


def fields_of(module: str, name: str) -> set[str]:
    for node in ast.walk(ast.parse(source_of(module))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
    raise AssertionError(f"vLLM has no class {name} in {module} any more")


@pytest.mark.parametrize("module", RUNNERS.values(), ids=RUNNERS)
def test_a_runner_keeps_a_steps_states_until_it_samples(module: str) -> None:
    assert "execute_model_state" in assigned(module), "the runner keeps no `execute_model_state` between the two halves"
    state = fields_of(module, "ExecuteModelState")
    assert {"hidden_states", "aux_hidden_states"} <= state, "the states of a step have other names"


@pytest.mark.parametrize("module", RUNNERS.values(), ids=RUNNERS)
def test_a_runner_asks_its_flag_whether_a_model_returns_layers(module: str) -> None:
    assert "use_aux_hidden_state_outputs" in assigned(module), "the flag `use_aux_hidden_state_outputs` has gone"


def test_the_second_runner_keeps_its_batch_with_the_states() -> None:
    assert "input_batch" in fields_of(RUNNERS["second"], "ExecuteModelState"), "the batch of a step is elsewhere"
    assert "input_batch" in assigned(RUNNERS["first"]), "the first runner has no `input_batch`"
    assert hasattr(gpu_model_runner.GPUModelRunner, "get_model"), "a runner's model is found in another way"


def test_a_worker_is_told_to_load_and_to_step() -> None:
    for name in ("load_model", "execute_model"):
        assert hasattr(gpu_worker.Worker, name), f"Worker.{name} has another name"


def test_a_step_says_what_the_tap_follows() -> None:
    named = {field.name for field in dataclasses.fields(SchedulerOutput)}
    needed = {"scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "finished_req_ids"}
    assert needed <= named, f"SchedulerOutput lacks {needed - named}"
    new = {field.name for field in dataclasses.fields(NewRequestData)}
    assert {"req_id", "prompt_token_ids", "mm_features", "sampling_params", "num_computed_tokens"} <= new
    assert {"req_ids", "num_computed_tokens"} <= {field.name for field in dataclasses.fields(CachedRequestData)}


def test_a_request_can_do_without_reading_the_prefix_cache() -> None:
    assert "skip_reading_prefix_cache" in {field.name for field in msgspec.structs.fields(SamplingParams)}
    manager: Any = SimpleNamespace(enable_caching=True)
    for skips in (True, False):
        request: Any = SimpleNamespace(skip_reading_prefix_cache=skips)
        reads = KVCacheManager.prefix_cache_lookup_enabled(manager, request)
        assert reads is not skips, "the prefix cache is read whatever a request says"


def test_layer_0_is_the_embeddings_and_layer_n_the_sum_after_n() -> None:
    class Model(torch.nn.Module, EagleModelMixin):  # type: ignore[misc]
        aux_hidden_state_layers = (0, 2)

    states, residual = torch.ones(1, 2), torch.full((1, 2), 3.0)
    kept: list[torch.Tensor] = []
    model = Model()
    model._maybe_add_hidden_state(kept, 0, states, None)
    model._maybe_add_hidden_state(kept, 1, states, residual)
    model._maybe_add_hidden_state(kept, 2, states, residual)
    assert [state.tolist() for state in kept] == [[[1, 1]], [[4, 4]]], "layers are kept in another way"


def test_the_thinkers_can_return_layers() -> None:
    torchvisionless.stand_in()
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
    from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3MoeLLMForCausalLM

    for model in (Qwen2ForCausalLM, Qwen3MoeLLMForCausalLM):
        assert supports_eagle3(model), f"{model.__name__} returns no layers any more"


def test_a_generation_can_be_read_token_by_token() -> None:
    assert RequestOutputKind.DELTA.name == "DELTA"
    assert SamplingParams(extra_args={"omni_rows": 2**62}).extra_args == {"omni_rows": 2**62}
