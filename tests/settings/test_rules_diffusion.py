from __future__ import annotations

from typing import Any

import pytest

from app.settings.rules_diffusion import diffusion_problems
from app.settings.schema import StageConfig


def problems(**arguments: Any) -> list[str]:
    stage = StageConfig(stage_id=0, name="diffusion", kind="diffusion", model="m", engine_args=arguments)
    return list(diffusion_problems(stage))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"lora_backend": "distill"}, "--lora-backend needs --lora-path"),
        ({"lora_scale": 0.0}, "--lora-scale needs --lora-path"),
        ({"diffusion_compile_dynamic": False}, "needs --diffusion-compile-granularity"),
        (
            {"diffusion_offload_config": {"mode": "layer"}, "enable_cpu_offload": True},
            "--diffusion-offload-config and --enable-cpu-offload exclude each other",
        ),
        ({"enable_cpu_offload": True, "enable_layerwise_offload": True}, "a part is moved whole or by layers"),
        ({"quantization": "int8", "diffusion_quantization_config": {"method": "fp8"}}, "name one"),
        (
            {"lora_backend": "distill", "lora_path": ["/a"], "quantization": "int8"},
            "distill cannot change quantized weights; use peft",
        ),
        ({"custom_pipeline_args": {"a": 1}}, "needs --diffusion-load-format custom_pipeline"),
        ({"task_type": "i2i", "model_class_name": "FluxPipeline"}, "the class decides the task; name one"),
        (
            {"diffusion_attention_backend": "native", "diffusion_attention_config": {"default": "flex"}},
            "are the same setting",
        ),
        ({"cache_config": {"threshold": 1}}, "--cache-config needs --cache-backend"),
        ({"cache_config": {"threshold": 1}, "cache_backend": "none"}, "--cache-config needs --cache-backend"),
        ({"cache_backend": "first_block", "enable_cache_dit_summary": True}, "needs --cache-backend cache_dit"),
        ({"cache_backend": "pab", "step_execution": True}, "--step-execution and --cache-backend pab exclude"),
        ({"cache_backend": "cache_dit", "max_num_seqs": 2}, "would depend on the other requests of a batch"),
        ({"cache_backend": "pab", "diffusion_compile_granularity": "regional"}, "regional works with cache_dit"),
        ({"cache_backend": "cache_dit", "diffusion_compile_granularity": "full"}, "regional works with cache_dit"),
        ({"enable_cpu_offload": True, "cache_backend": "cache_dit"}, "use --enable-layerwise-offload, which moves"),
        ({"enable_cpu_offload": True, "step_execution": True}, "use --enable-layerwise-offload"),
        ({"diffusion_offload_config": {"mode": "module"}, "step_execution": True}, "use --enable-layerwise-offload"),
        ({"enable_layerwise_offload": True, "diffusion_compile_granularity": "full"}, "regional works with it"),
        ({"enable_cuda_graph_decode": True, "diffusion_compile_granularity": "full"}, "use --diffusion-compile-gran"),
        ({"enable_cuda_graph_decode": True, "step_execution": True}, "a graph belongs to one thread"),
        ({"enable_cuda_graph_decode": True, "cache_backend": "pab"}, "keeps what a graph overwrites"),
        ({"enable_cuda_graph_decode": True, "enable_layerwise_offload": True}, "weights must stay where they are"),
        ({"dlo_resident_layers": 1}, "--dlo-resident-layers needs --enable-distributed-layerwise-offload"),
        (
            {"enable_distributed_layerwise_offload": True, "enable_layerwise_offload": True},
            "both keep layers in host memory; name one",
        ),
        ({"diffusion_kv_cache_skip_steps": "1"}, "needs --diffusion-kv-cache-dtype fp8"),
        ({"diffusion_kv_cache_dtype": "fp8", "diffusion_kv_cache_skip_layers": "9-1"}, "such as 0-9,20; got '9-1'"),
        (
            {"diffusion_kv_cache_dtype": "fp8", "diffusion_kv_cache_skip_steps": "1", "step_execution": True},
            "--diffusion-kv-cache-skip-layers works with it",
        ),
        ({"host_weight_runtime_mode": "preferred"}, "needs --host-weight-runtime-root"),
        ({"host_weight_runtime_root": "/dev/shm"}, "--host-weight-runtime-root needs --host-weight-runtime-mode"),
        ({"video_output_transport": {"enable_registered_shm": True}}, "unknown field `enable_registered_shm`"),
    ],
)
def test_what_cannot_work(arguments: dict[str, Any], told: str) -> None:
    (problem,) = problems(**arguments)
    assert told in problem


@pytest.mark.parametrize(
    "arguments",
    [
        {"cache_backend": "cache_dit", "diffusion_compile_granularity": "regional"},
        {"lora_backend": "distill", "lora_scale": 0.5, "lora_path": ["/a", "/b"]},
        {"diffusion_attention_backend": "native", "diffusion_attention_config": {"per_role": {"self": "flex"}}},
        {"cache_backend": "taylorseer", "max_num_seqs": 8, "cache_config": {"max_order": 1}},
        {"enable_layerwise_offload": True, "step_execution": True, "diffusion_compile_granularity": "regional"},
        {"enable_cpu_offload": True, "diffusion_compile_granularity": "full", "enforce_eager": True},
    ],
)
def test_what_works_together(arguments: dict[str, Any]) -> None:
    assert problems(**arguments) == []
