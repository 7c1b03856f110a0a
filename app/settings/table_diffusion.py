"""Rows of the flag table for diffusion stages: names, types and choices are settled, the engine is planned."""

from __future__ import annotations

from typing import Any

from app.settings.flags import Flag
from app.settings.values import ValueKind

_IMAGES, _MANY_GPUS = 4, 8


def _row(part: int, name: str, kind: ValueKind, help: str, **more: Any) -> Flag:
    target = f"engine.{name.replace('-', '_')}"
    return Flag(
        name=name,
        kind=kind,
        group="diffusion",
        target=target,
        kinds=("diffusion",),
        help=help,
        status="planned",
        part=part,
        **more,
    )


LOADING = (
    _row(_IMAGES, "model-class-name", "str", "Pipeline class to use in place of the one that the model names."),
    _row(
        _IMAGES,
        "diffusion-load-format",
        "str",
        "How the pipeline is loaded.",
        choices=("default", "custom_pipeline", "dummy", "diffusers"),
    ),
    _row(_IMAGES, "diffusers-load-kwargs", "json", "Arguments for from_pretrained."),
    _row(
        _IMAGES, "diffusers-call-kwargs", "json", "Arguments for every call of the pipeline; the request is stronger."
    ),
    _row(_IMAGES, "custom-pipeline-args", "json", "Arguments for a custom pipeline, such as its class."),
    _row(_IMAGES, "lora-path", "list", "LoRA adapters loaded at the start.", metavar="PATH..."),
    _row(
        _IMAGES,
        "lora-backend",
        "str",
        "Keep the adapter apart (peft) or fuse it (distill).",
        choices=("peft", "distill"),
    ),
    _row(_IMAGES, "lora-scale", "float", "Strength of the adapter."),
    _row(_IMAGES, "auxiliary-text-encoder", "str", "Directory or hub id of a further text encoder."),
    _row(_IMAGES, "diffusion-quantization-config", "json", "Quantization of the pipeline's parts."),
    _row(_MANY_GPUS, "force-cutlass-fp8", "bool", "Use CUTLASS kernels for FP8 weights.", needs="CUDA"),
    _row(_MANY_GPUS, "disable-multithread-weight-load", "bool", "Read weight files one after another."),
    _row(_MANY_GPUS, "num-weight-load-threads", "int", "Threads that read weight files.", least=1),
    _row(
        _MANY_GPUS, "enable-broadcast-weight-load", "bool", "One GPU reads the weights for all.", needs="several GPUs"
    ),
)

PARALLEL = (
    _row(_MANY_GPUS, "ulysses-degree", "int", "GPUs for Ulysses sequence parallelism.", least=1, aliases=("--usp",)),
    _row(
        _MANY_GPUS,
        "ulysses-mode",
        "str",
        "What to do with sizes that do not divide.",
        choices=("strict", "advanced_uaa"),
    ),
    _row(_MANY_GPUS, "ulysses-a2a-permute", "bool", "Fuse the exchange between the GPUs of Ulysses."),
    _row(_MANY_GPUS, "ring-degree", "int", "GPUs for ring sequence parallelism.", least=1, aliases=("--ring",)),
    _row(_MANY_GPUS, "allgather-degree", "int", "GPUs that gather keys and values.", least=1),
    _row(_MANY_GPUS, "cfg-parallel-size", "int", "GPUs that share the passes of guidance.", least=1),
    _row(_MANY_GPUS, "vae-patch-parallel-size", "int", "GPUs that decode one picture together.", least=1),
    _row(
        _MANY_GPUS,
        "vae-parallel-mode",
        "str",
        "How a picture is split for decoding.",
        choices=("tile", "batch", "spatial_shard_height", "spatial_shard_width"),
    ),
    _row(_MANY_GPUS, "text-encoder-tp-size", "int", "GPUs for each layer of the text encoder.", least=1),
    _row(_MANY_GPUS, "use-hsdp", "bool", "Shard the weights over the GPUs."),
    _row(_MANY_GPUS, "hsdp-shard-size", "int", "GPUs that hold one copy of the weights.", least=-1),
    _row(_MANY_GPUS, "hsdp-replicate-size", "int", "Copies of the weights.", least=1),
    _row(_MANY_GPUS, "hsdp-weight-load-strategy", "str", "How shards are filled.", choices=("full", "pre_sharded")),
    _row(_MANY_GPUS, "num-gpus", "int", "GPUs of the stage in all.", least=1),
)

RUNNING = (
    _row(_IMAGES, "diffusion-attention-backend", "str", "Attention kernels for all parts of the pipeline."),
    _row(
        _IMAGES, "diffusion-attention-config", "json", "Attention kernels by part of the pipeline.", aliases=("-dac",)
    ),
    _row(_MANY_GPUS, "fastvideo-vsa-topk", "int", "Blocks kept by sparse video attention.", least=1),
    _row(_MANY_GPUS, "fa-deterministic", "bool", "Repeatable FlashAttention.", needs="CUDA"),
    _row(_MANY_GPUS, "diffusion-kv-cache-dtype", "str", "Number type of cached keys and values."),
    _row(_MANY_GPUS, "diffusion-kv-cache-skip-steps", "str", "Steps without that cache, such as 0-9,20."),
    _row(_MANY_GPUS, "diffusion-kv-cache-skip-layers", "str", "Layers without that cache, such as 0-9,20."),
    _row(
        _IMAGES,
        "diffusion-compile-granularity",
        "str",
        "Compile repeated blocks or the whole model.",
        choices=("regional", "full"),
    ),
    _row(_IMAGES, "diffusion-compile-dynamic", "bool", "Compile for sizes that change."),
    _row(
        _MANY_GPUS,
        "enable-cuda-graph-decode",
        "bool",
        "CUDA graphs for token decoding inside the pipeline.",
        needs="CUDA",
    ),
    _row(
        _IMAGES,
        "cache-backend",
        "str",
        "Reuse the work of earlier steps.",
        choices=("none", "tea_cache", "cache_dit", "mag_cache", "sea_cache", "step_cache"),
    ),
    _row(_IMAGES, "cache-config", "json", "Settings of that cache."),
    _row(_IMAGES, "enable-cache-dit-summary", "bool", "Log how much the cache saved."),
    _row(_MANY_GPUS, "video-output-transport", "json", "How finished frames leave the GPU."),
    _row(_IMAGES, "step-execution", "bool", "Mix requests at every step in place of whole runs."),
    _row(_IMAGES, "request-batch-max-wait-ms", "float", "Wait so long for requests to compute together.", least=0),
    _row(_MANY_GPUS, "diffusion-streaming-output", "bool", "Send a video in pieces while it is made."),
    _row(_IMAGES, "vae-use-slicing", "bool", "Decode one picture at a time: less memory."),
    _row(_IMAGES, "vae-use-tiling", "bool", "Decode pictures in tiles: less memory."),
    _row(_MANY_GPUS, "vae-fast-path", "str", "Faster decoding.", choices=("off", "lossless", "channels_last")),
    _row(_IMAGES, "boundary-ratio", "float", "Where Wan 2.2 changes from its first model to its second."),
    _row(_IMAGES, "flow-shift", "float", "Shift of the noise schedule."),
    _row(_IMAGES, "no-guardrails", "bool", "Turn the model's own safety check off."),
    _row(_IMAGES, "enable-diffusion-pipeline-profiler", "bool", "Tell how long each part of the pipeline took."),
    _row(_IMAGES, "max-generated-image-size", "int", "Most pixels of a picture that a request may ask for.", least=1),
)

OFFLOAD = (
    _row(_IMAGES, "enable-cpu-offload", "bool", "Keep parts that rest in host memory."),
    _row(_IMAGES, "enable-layerwise-offload", "bool", "Keep layers that rest in host memory."),
    _row(_IMAGES, "diffusion-offload-config", "json", "Which parts and layers are kept where."),
    _row(_MANY_GPUS, "enable-distributed-layerwise-offload", "bool", "Spread offloaded layers over the GPUs' hosts."),
    _row(_MANY_GPUS, "dlo-use-allgather", "bool", "Fetch offloaded layers together."),
    _row(_MANY_GPUS, "dlo-no-use-allgather", "bool", "The same as --no-dlo-use-allgather."),
    _row(_MANY_GPUS, "dlo-resident-layers", "int", "Layers that stay on the GPU.", least=0),
    _row(
        _MANY_GPUS,
        "host-weight-runtime-mode",
        "str",
        "Share weights in host memory between processes.",
        choices=("disabled", "preferred", "required"),
    ),
    _row(_MANY_GPUS, "host-weight-runtime-root", "str", "Directory of those weights.", metavar="DIR"),
    _row(_MANY_GPUS, "dlo-host-registration-limit-gib", "float", "Most host memory to pin, in GiB.", least=0),
)

DIFFUSION_FLAGS = (*LOADING, *PARALLEL, *RUNNING, *OFFLOAD)
