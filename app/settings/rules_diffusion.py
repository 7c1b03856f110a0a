"""Arguments of a diffusion stage that cannot work, alone or together, as far as that can be judged without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.engines.diffusion.layout import QUANTIZATION, layout_problems, offloads_modules
from app.engines.diffusion.options import read_options
from app.engines.diffusion.ranges import read_ranges
from app.settings.rules_options import option_problems
from app.settings.schema import StageConfig

_BY_LAYER = ("enable_layerwise_offload", "diffusion_offload_config", "enable_distributed_layerwise_offload")
_OF_DISTRIBUTED = (
    "dlo_use_allgather",
    "dlo_no_use_allgather",
    "dlo_resident_layers",
    "dlo_host_registration_limit_gib",
)
_NEEDED = (
    ("lora_backend", "lora_path"),
    ("lora_scale", "lora_path"),
    ("diffusion_compile_dynamic", "diffusion_compile_granularity"),
    ("host_weight_runtime_root", "host_weight_runtime_mode"),
    *((name, "enable_distributed_layerwise_offload") for name in _OF_DISTRIBUTED),
)
"""Arguments of which the first means nothing without the second."""

_EXCLUDED = (
    ("diffusion_offload_config", "enable_cpu_offload", "the config's `mode` says the same"),
    ("diffusion_offload_config", "enable_layerwise_offload", "the config's `mode` says the same"),
    *(
        (name, "enable_distributed_layerwise_offload", "both keep layers in host memory; name one")
        for name in ("diffusion_offload_config", "enable_cpu_offload", "enable_layerwise_offload")
    ),
    ("enable_cpu_offload", "enable_layerwise_offload", "a part is moved whole or by layers; name one"),
    ("diffusion_quantization_config", "quantization", "both say how weights are quantized; name one"),
    ("diffusion_quantization_config", "quantization_config", "it is the older name of the same; name one"),
    ("model_class_name", "task_type", "the class decides the task; name one"),
    ("custom_pipeline_args", "task_type", "the class decides the task; name one"),
)
_JUDGED_BY_BATCH = ("cache_dit", "first_block", "tea_cache", "sea_cache")
"""Caches that look at the whole batch to decide whether a step is skipped."""


def diffusion_problems(stage: StageConfig) -> Iterator[str]:
    """One sentence for each argument or combination that cannot work, with what to do."""
    yield from option_problems(read_options, stage)
    given = stage.engine_args
    for name, needed in _NEEDED:
        if given.get(name) is not None and not given.get(needed):
            yield f"{_option(name)} needs {_option(needed)}"
    for name, other, why in _EXCLUDED:
        if given.get(name) and given.get(other):
            yield f"{_option(name)} and {_option(other)} exclude each other: {why}"
    if given.get("custom_pipeline_args") and given.get("diffusion_load_format") != "custom_pipeline":
        yield "--custom-pipeline-args needs --diffusion-load-format custom_pipeline"
    if given.get("lora_backend") == "distill" and any(given.get(name) for name in QUANTIZATION):
        yield "--lora-backend distill cannot change quantized weights; use peft"
    if given.get("host_weight_runtime_mode") == "preferred" and not given.get("host_weight_runtime_root"):
        yield "--host-weight-runtime-mode preferred needs --host-weight-runtime-root: a directory for the copy"
    yield from _attention(given)
    yield from _eight_bits(given)
    yield from _graphs(given)
    yield from _cache(given)
    yield from _streaming(given)
    yield from _offload(given)
    yield from layout_problems(given)
    if Path(stage.model).expanduser().is_file():
        yield from _single_file(stage.model, _of(given, "diffusers_load_kwargs", "config"))


def _single_file(model: str, config: Any) -> Iterator[str]:
    if not isinstance(config, str):
        yield (
            f'{model} is one file of weights; --diffusers-load-kwargs \'{{"config": "DIR"}}\' says where the other '
            "parts of its pipeline are"
        )
    elif not Path(config).expanduser().is_dir():
        yield f"--diffusers-load-kwargs: config is the directory of the pipeline; there is none at {config}"


def _attention(given: dict[str, Any]) -> Iterator[str]:
    if given.get("diffusion_attention_backend") and _of(given, "diffusion_attention_config", "default"):
        yield (
            "--diffusion-attention-backend and `default` of --diffusion-attention-config are the same setting; "
            "name one of them"
        )


def _eight_bits(given: dict[str, Any]) -> Iterator[str]:
    for name in ("diffusion_kv_cache_skip_steps", "diffusion_kv_cache_skip_layers"):
        if not given.get(name):
            continue
        if given.get("diffusion_kv_cache_dtype") != "fp8":
            yield f"{_option(name)} needs --diffusion-kv-cache-dtype fp8"
        try:
            read_ranges(given[name])
        except ValueError as error:
            yield f"{_option(name)}: {error}"
    if given.get("step_execution") and given.get("diffusion_kv_cache_skip_steps"):
        yield (
            "--diffusion-kv-cache-skip-steps and --step-execution exclude each other: requests at different steps are "
            "computed in one pass; --diffusion-kv-cache-skip-layers works with it"
        )


def _graphs(given: dict[str, Any]) -> Iterator[str]:
    """A graph reads its weights and its input where they were when it was recorded."""
    if not given.get("enable_cuda_graph_decode"):
        return
    if given.get("diffusion_compile_granularity") == "full":
        yield "--enable-cuda-graph-decode records blocks; use --diffusion-compile-granularity regional, or leave it out"
    if given.get("step_execution"):
        yield "--enable-cuda-graph-decode and --step-execution exclude each other: a graph belongs to one thread"
    if (given.get("cache_backend") or "none") != "none":
        yield "--enable-cuda-graph-decode and --cache-backend exclude each other: a cache keeps what a graph overwrites"
    for name in (name for name in ("enable_cpu_offload", "use_hsdp", *_BY_LAYER) if given.get(name)):
        yield f"--enable-cuda-graph-decode and {_option(name)} exclude each other: weights must stay where they are"


def _streaming(given: dict[str, Any]) -> Iterator[str]:
    """Frames can be seen as they are decoded where the decoder works for one request, on whole frames."""
    if not given.get("diffusion_streaming_output"):
        return
    if given.get("step_execution"):
        yield "--diffusion-streaming-output and --step-execution exclude each other: requests share the decoder"
    apart = (given.get("vae_patch_parallel_size") or 1) > 1 and given.get("vae_parallel_mode") != "batch"
    if apart:
        yield (
            "--diffusion-streaming-output needs whole frames, and ranks that share the decoding make tiles: leave "
            "--vae-patch-parallel-size out"
        )
    if given.get("vae_use_tiling"):
        yield (
            "--diffusion-streaming-output needs whole frames, which tiles are not: add --no-vae-use-tiling, which "
            "takes more memory"
        )


def _cache(given: dict[str, Any]) -> Iterator[str]:
    backend = given.get("cache_backend") or "none"
    if backend == "none":
        if given.get("cache_config"):
            yield "--cache-config needs --cache-backend"
    elif given.get("step_execution"):
        yield (
            f"--step-execution and --cache-backend {backend} exclude each other: the cache belongs to the model, and "
            "requests at different steps would read each other's"
        )
    elif backend in _JUDGED_BY_BATCH and (given.get("max_num_seqs") or 1) > 1:
        yield (
            f"--max-num-seqs above 1 and --cache-backend {backend} exclude each other: what is skipped would depend "
            "on the other requests of a batch; mag_cache, taylorseer, pab and text_kv skip by a plan"
        )
    granularity = None if given.get("enforce_eager") else given.get("diffusion_compile_granularity")
    if backend != "none" and granularity and (granularity, backend) != ("regional", "cache_dit"):
        yield (
            f"--diffusion-compile-granularity {granularity} and --cache-backend {backend} exclude each other: what is "
            "skipped must not be within what is compiled; regional works with cache_dit"
        )
    if given.get("enable_cache_dit_summary") and backend != "cache_dit":
        yield "--enable-cache-dit-summary needs --cache-backend cache_dit"


def _offload(given: dict[str, Any]) -> Iterator[str]:
    by_module = offloads_modules(given)
    if by_module and given.get("step_execution"):
        yield (
            "--step-execution needs the whole pipeline on the device: one request encodes while another denoises; "
            "use --enable-layerwise-offload"
        )
    backend = given.get("cache_backend") or "none"
    if by_module and backend != "none":
        yield (
            f"--cache-backend {backend} does not outlast a part's move to host memory; use --enable-layerwise-offload, "
            "which moves blocks"
        )
    offloads = by_module or any(given.get(name) for name in _BY_LAYER)
    if offloads and given.get("enable_sleep_mode"):
        yield "--enable-sleep-mode moves whole parts to host memory, where offloading keeps them: leave one of them out"
    if offloads and given.get("diffusion_compile_granularity") == "full" and not given.get("enforce_eager"):
        yield "--diffusion-compile-granularity full and offloading exclude each other; regional works with it"


def _of(given: dict[str, Any], name: str, key: str) -> Any:
    value = given.get(name)
    return value.get(key) if isinstance(value, dict) else None


def _option(argument: str) -> str:
    return "--" + argument.replace("_", "-")
