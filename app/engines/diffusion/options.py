"""The engine arguments of a diffusion stage, typed. No torch: options are read before anything heavy is imported."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from app.engines.arguments import read_arguments
from app.settings.schema import StageConfig

LoadFormat = Literal["default", "diffusers", "custom_pipeline", "dummy"]
CacheBackend = Literal[
    "none",
    "cache_dit",
    "first_block",
    "tea_cache",
    "mag_cache",
    "sea_cache",
    "taylorseer",
    "pab",
    "faster_cache",
    "text_kv",
]
Granularity = Literal["regional", "full"]
TaskType = Literal["t2i", "i2i", "inpaint", "t2v", "i2v", "v2v"]
VaeFastPath = Literal["off", "lossless", "channels_last"]


class OutputTransport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pictures leave the device: as bytes, rounded there, or as what the pipeline itself makes of them.

    `enable_borrowed_frames`: the encoder of videos reads frames where they lie, in place of copying each.
    """

    enable_device_postprocess: bool = True
    enable_borrowed_frames: bool = False


_DEFAULT_PIXELS = 7680 * 4320


class DiffusionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be said about a diffusion stage; names are those of the flags.

    `dtype` is auto, bfloat16, float16 or float32; `device` a torch device, "" for the machine's accelerator, or its CPU
    if it has none. `max_num_seqs`: most requests computed in one batch. `max_generated_image_size`: width times height.
    `request_batch_max_wait_ms`: how long a request waits for others to share its batch, in milliseconds, though no
    longer than `batch_timeout` in seconds.
    `max_loras`: most adapters kept loaded at a time; those of --lora-path are not counted.
    `default_sampling_params` are the stage's values for requests without their own.
    """

    # loading
    dtype: str = "auto"
    device: str = ""
    revision: str = ""
    download_dir: str = ""
    trust_remote_code: bool = False
    model_class_name: str = ""
    task_type: TaskType | Literal[""] = ""
    diffusion_load_format: LoadFormat = "default"
    diffusers_load_kwargs: dict[str, Any] = {}
    diffusers_call_kwargs: dict[str, Any] = {}
    custom_pipeline_args: dict[str, Any] = {}
    auxiliary_text_encoder: str = ""
    disable_multithread_weight_load: bool = False
    num_weight_load_threads: int = 4
    no_guardrails: bool = False
    host_weight_runtime_mode: Literal["disabled", "preferred"] = "disabled"
    host_weight_runtime_root: str = ""

    # quantization: a method's name, the config of one method, or a config by component
    quantization: str = ""
    quantization_config: dict[str, Any] = {}
    diffusion_quantization_config: dict[str, Any] = {}

    # adapters
    lora_path: list[str] = []
    lora_backend: Literal["peft", "distill"] = "peft"
    lora_scale: float = 1.0
    lora_dir: list[str] = []
    max_loras: int = 8

    # execution
    max_num_seqs: int = 1
    step_execution: bool = False
    request_batch_max_wait_ms: float = 0.0
    batch_timeout: float = 10.0
    max_generated_image_size: int = _DEFAULT_PIXELS
    enable_diffusion_pipeline_profiler: bool = False
    diffusion_attention_backend: str = ""
    diffusion_attention_config: dict[str, Any] = {}
    fa_deterministic: bool = False
    diffusion_kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    diffusion_kv_cache_skip_steps: str = ""
    diffusion_kv_cache_skip_layers: str = ""
    enforce_eager: bool = False
    diffusion_compile_granularity: Granularity | None = None
    diffusion_compile_dynamic: bool | None = None
    enable_cuda_graph_decode: bool = False
    video_output_transport: OutputTransport = OutputTransport()
    diffusion_streaming_output: bool = False
    cache_backend: CacheBackend = "none"
    cache_config: dict[str, Any] = {}
    enable_cache_dit_summary: bool = False

    # schedule
    boundary_ratio: float | None = None
    flow_shift: float | None = None

    # memory
    vae_use_slicing: bool = False
    vae_use_tiling: bool = False
    vae_fast_path: VaeFastPath = "lossless"
    enable_sleep_mode: bool = False
    enable_cpu_offload: bool = False
    enable_layerwise_offload: bool = False
    diffusion_offload_config: dict[str, Any] = {}
    enable_distributed_layerwise_offload: bool = False
    dlo_use_allgather: bool | None = None
    dlo_no_use_allgather: bool = False
    dlo_resident_layers: int = 0
    dlo_host_registration_limit_gib: float | None = None

    # several ranks (app.engines.diffusion.layout)
    num_gpus: int | None = None
    ulysses_degree: int = 1
    ulysses_mode: Literal["strict", "advanced_uaa"] = "strict"
    ring_degree: int = 1
    allgather_degree: int = 1
    cfg_parallel_size: int = 1
    tensor_parallel_size: int = 1
    text_encoder_tp_size: int = 1
    use_hsdp: bool = False
    hsdp_shard_size: int = -1
    hsdp_replicate_size: int = 1
    hsdp_weight_load_strategy: Literal["full", "pre_sharded"] = "full"
    enable_broadcast_weight_load: bool = False
    vae_patch_parallel_size: int = 1
    vae_parallel_mode: Literal["tile", "batch"] = "tile"

    default_sampling_params: dict[str, Any] = {}

    @property
    def batch_wait_s(self) -> float:
        """The longest time that a request waits for others to share its batch."""
        return min(self.request_batch_max_wait_ms / 1000, self.batch_timeout)


def read_options(stage: StageConfig) -> DiffusionOptions:
    """The stage's engine arguments and sampling defaults, checked.

    Raises:
        ValueError: an argument is unknown or has a value that cannot be; the message names stage and argument.
    """
    return read_arguments(stage, DiffusionOptions, "diffusion")
