"""Rows of the flag table for diffusion stages. What no library has is refused."""

from __future__ import annotations

from typing import Any, get_args

from app.engines.diffusion.options import CacheBackend, TaskType
from app.settings.flags import Flag
from app.settings.values import ValueKind

_ACCELERATOR = "an accelerator"


def _row(name: str, kind: ValueKind, help: str, **more: Any) -> Flag:
    target = f"engine.{name.replace('-', '_')}"
    return Flag(name=name, kind=kind, group="diffusion", target=target, kinds=("diffusion",), help=help, **more)


LOADING = (
    _row("model-class-name", "str", "Pipeline class to use in place of the one that the model names."),
    _row(
        "task-type",
        "str",
        "What the pipeline is loaded for, where the model has pipelines for several tasks. Default: as the model says.",
        choices=get_args(TaskType),
        never=dict.fromkeys(("CustomVoice", "VoiceDesign", "Base"), "it is of Qwen3-TTS, which cannot run here"),
    ),
    _row(
        "diffusion-load-format",
        "str",
        "How the pipeline is loaded.",
        choices=("default", "custom_pipeline", "dummy", "diffusers"),
    ),
    _row("diffusers-load-kwargs", "json", "Arguments for from_pretrained.", metavar="JSON"),
    _row(
        "diffusers-call-kwargs",
        "json",
        "Arguments for every call of the pipeline; the request is stronger.",
        metavar="JSON",
    ),
    _row("custom-pipeline-args", "json", "Arguments for a custom pipeline, such as its class.", metavar="JSON"),
    _row(
        "lora-path",
        "list",
        "LoRA adapters that are loaded at the start and act on every request without a choice of its own.",
        metavar="PATH...",
    ),
    _row(
        "lora-backend",
        "str",
        "Keep the adapters of --lora-path apart (peft), or fuse them into the weights for good (distill).",
        choices=("peft", "distill"),
    ),
    _row("lora-scale", "float", "Strength of the adapters of --lora-path. Default: 1."),
    _row("lora-dir", "list", "Directories below which a request may name a LoRA adapter by path.", metavar="DIR..."),
    _row("auxiliary-text-encoder", "str", "Directory of a further text encoder."),
    _row(
        "diffusion-quantization-config",
        "json",
        'Quantization, of all of the pipeline: {"method": "int8"}, or by part: {"transformer": {"method": "fp8"}}.',
        metavar="JSON",
    ),
    _row(
        "force-cutlass-fp8",
        "bool",
        "",
        status="refused",
        reason="it chooses among ModelOpt's kernels, and no checkpoint is run with those here; use --quantization fp8",
    ),
    _row("disable-multithread-weight-load", "bool", "Read weight files one after another."),
    _row("num-weight-load-threads", "int", "Threads that read weight files. Default: 4.", least=1),
    _row("enable-broadcast-weight-load", "bool", "One GPU reads the weights for all."),
)

PARALLEL = (
    _row("ulysses-degree", "int", "GPUs for Ulysses sequence parallelism.", least=1, aliases=("--usp",)),
    _row(
        "ulysses-mode",
        "str",
        "What to do with sizes that do not divide.",
        choices=("strict", "advanced_uaa"),
    ),
    _row(
        "ulysses-a2a-permute",
        "bool",
        "",
        status="refused",
        reason="diffusers' Ulysses exchanges with all_to_all, whose kernels cannot be chosen; leave it out",
    ),
    _row("ring-degree", "int", "GPUs for ring sequence parallelism.", least=1, aliases=("--ring",), needs="CUDA"),
    _row("allgather-degree", "int", "GPUs that gather keys and values.", least=1, needs="CUDA"),
    _row("cfg-parallel-size", "int", "GPUs that share the passes of guidance.", least=1),
    _row("vae-patch-parallel-size", "int", "GPUs that decode one picture together.", least=1),
    _row(
        "vae-parallel-mode",
        "str",
        "How a picture is split for decoding.",
        choices=("tile", "batch"),
        never=dict.fromkeys(
            ("spatial_shard_height", "spatial_shard_width"),
            "diffusers' autoencoders exchange no borders between GPUs; use tile, or batch for several pictures",
        ),
    ),
    _row("text-encoder-tp-size", "int", "GPUs for each layer of the text encoder.", least=1),
    _row("use-hsdp", "bool", "Shard the weights over the GPUs."),
    _row("hsdp-shard-size", "int", "GPUs that hold one copy of the weights.", least=-1),
    _row("hsdp-replicate-size", "int", "Copies of the weights.", least=1),
    _row("hsdp-weight-load-strategy", "str", "How shards are filled.", choices=("full", "pre_sharded")),
    _row("num-gpus", "int", "GPUs of the stage in all.", least=1),
)

RUNNING = (
    _row("diffusion-attention-backend", "str", "Attention kernels, such as TORCH_SDPA, FLASH_ATTN, SAGE_ATTN, native."),
    _row(
        "diffusion-attention-config",
        "json",
        'Attention kernels by role: {"default": ..., "per_role": {"self": ..., "cross": ..., "joint": ...}}.',
        metavar="JSON",
        aliases=("-dac",),
    ),
    _row(
        "fastvideo-vsa-topk",
        "int",
        "",
        status="refused",
        reason="diffusers has no sparse video attention; --diffusion-attention-backend sage is the nearest fast kernel",
    ),
    _row("fa-deterministic", "bool", "Have kernels of FlashAttention give the same bits every time.", needs="CUDA"),
    _row(
        "diffusion-kv-cache-dtype",
        "str",
        "Keys and values of attention: the model's own type, or 8 bits (SageAttention; fp8 needs CUDA).",
        choices=("auto", "fp8"),
        never=dict.fromkeys(
            ("mxfp8", "mxfp4", "float"), "no kernel of diffusers computes attention with such numbers; use fp8"
        ),
    ),
    _row("diffusion-kv-cache-skip-steps", "str", "Steps with the model's own type, from 0, such as 0-9,20."),
    _row("diffusion-kv-cache-skip-layers", "str", "Attention layers with it, from 0, such as 0-9,20."),
    _row(
        "diffusion-compile-granularity",
        "str",
        "Compile the repeated blocks, or all, of the denoiser. Default: nothing is compiled.",
        choices=("regional", "full"),
    ),
    _row("diffusion-compile-dynamic", "bool", "Compile once for all sizes, or for each size. Default: torch decides."),
    _row(
        "enable-cuda-graph-decode",
        "bool",
        "Compile the denoiser's blocks with CUDA graphs. Without CUDA it has no effect.",
        needs="CUDA",
    ),
    _row(
        "cache-backend",
        "str",
        "Reuse the work of earlier steps.",
        choices=get_args(CacheBackend),
        never={"step_cache": "no pipeline of diffusers has it; use cache_dit, first_block or taylorseer"},
    ),
    _row("cache-config", "json", "Settings of that cache.", metavar="JSON"),
    _row("enable-cache-dit-summary", "bool", "Log after each request how much cache_dit saved."),
    _row(
        "video-output-transport",
        "json",
        "How finished pictures leave the GPU and come to the encoder. Default: "
        '{"enable_device_postprocess": true, "enable_borrowed_frames": false}: rounded to bytes there, and copied.',
        metavar="JSON",
    ),
    _row("step-execution", "bool", "Mix requests at every step in place of whole runs."),
    _row(
        "request-batch-max-wait-ms",
        "float",
        "Wait so long, in milliseconds, for requests to compute together.",
        least=0,
    ),
    _row(
        "batch-timeout",
        "float",
        "Longest time, in seconds, that --request-batch-max-wait-ms may ask for. Default: 10.",
        least=0,
    ),
    _row(
        "diffusion-streaming-output",
        "bool",
        "Let /v1/videos/sync send a video while its frames are decoded.",
    ),
    _row("vae-use-slicing", "bool", "Decode one picture at a time: less memory."),
    _row("vae-use-tiling", "bool", "Decode pictures in tiles: less memory."),
    _row(
        "vae-fast-path",
        "str",
        "Memory layout for faster decoding; lossless is the same as off here.",
        choices=("off", "lossless", "channels_last"),
    ),
    _row("boundary-ratio", "float", "Share of the steps that Wan 2.2 leaves to its second model.", least=0, most=1),
    _row("flow-shift", "float", "Shift of the noise schedule."),
    _row("no-guardrails", "bool", "Turn the model's own safety check off."),
    _row("enable-diffusion-pipeline-profiler", "bool", "Tell how long each part of the pipeline took."),
    _row(
        "max-generated-image-size",
        "int",
        "Most pixels, width times height, of a picture that a request asks for.",
        least=1,
    ),
)

OFFLOAD = (
    _row(
        "enable-cpu-offload",
        "bool",
        "Keep the pipeline's parts in host memory while others compute.",
        needs=_ACCELERATOR,
    ),
    _row(
        "enable-layerwise-offload",
        "bool",
        "Keep layers in host memory while others compute: least memory, slower.",
        needs=_ACCELERATOR,
    ),
    _row(
        "diffusion-offload-config",
        "json",
        'Which parts are kept where: {"mode": "layer", "layer_options": {"resident_layers": 4}}.',
        metavar="JSON",
    ),
    _row(
        "enable-distributed-layerwise-offload",
        "bool",
        "Keep layers in host memory; of several GPUs each keeps a part of every layer there.",
        needs=_ACCELERATOR,
    ),
    _row("dlo-use-allgather", "bool", "GPUs gather a layer from their parts. Default where there are several."),
    _row("dlo-no-use-allgather", "bool", "Each GPU has all layers in host memory for itself."),
    _row("dlo-resident-layers", "int", "Layers that stay on the GPU.", least=0),
    _row(
        "host-weight-runtime-mode",
        "str",
        "Load from a copy of the checkpoint in --host-weight-runtime-root, which processes share, if there is room.",
        choices=("disabled", "preferred"),
        never={"required": "a copy that does not fit is done without; use preferred"},
    ),
    _row("host-weight-runtime-root", "str", "Directory of that copy, such as one in /dev/shm.", metavar="DIR"),
    _row(
        "dlo-host-registration-limit-gib",
        "float",
        "Most host memory that each GPU pins, in GiB. Default: without limit.",
        least=0,
    ),
)

DIFFUSION_FLAGS = (*LOADING, *PARALLEL, *RUNNING, *OFFLOAD)
