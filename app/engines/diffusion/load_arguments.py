"""--diffusers-load-kwargs: arguments of from_pretrained as JSON has them, checked and made into Python's objects.

diffusers itself warns of an argument that it does not know, and goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diffusers import PipelineQuantizationConfig

from app.engines.device import DTYPES
from app.settings.problems import did_you_mean

FLAG = "--diffusers-load-kwargs"
TAKEN = frozenset(
    {
        "device_map",
        "disable_mmap",
        "dtype",
        "load_connected_pipeline",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_folder",
        "offload_state_dict",
        "quantization_config",
        "torch_dtype",
        "use_flashpack",
        "use_safetensors",
        "variant",
    }
)
"""What from_pretrained takes beside the constructor's parameters and what is in INSTEAD."""

INSTEAD = {
    "cache_dir": "--download-dir",
    "custom_pipeline": "--custom-pipeline-args",
    "custom_revision": "--custom-pipeline-args",
    "force_download": "--revision",
    "local_files_only": "the environment variable HF_HUB_OFFLINE",
    "proxies": "the environment variable HTTPS_PROXY",
    "revision": "--revision",
    "token": "the environment variable HF_TOKEN",
    "trust_remote_code": "--trust-remote-code",
}
"""A model is on this machine before it is loaded: what is said about getting it is said elsewhere."""

NO_ONNX = frozenset({"provider", "provider_options", "sess_options", "use_onnx"})
SINGLE_FILE = frozenset({"config"})
"""Belongs to a single file; read by app.engines.diffusion.singlefile."""


def load_arguments(given: dict[str, Any], constructor: Iterable[str]) -> dict[str, Any]:
    """`given` as from_pretrained takes it; `constructor` names what the pipeline's constructor takes.

    Raises:
        ValueError: an argument that is unknown, that another option stands for, or that cannot be converted.
    """
    constructor = set(constructor)
    return {name: _converted(name, value, constructor) for name, value in given.items() if name not in SINGLE_FILE}


def _converted(name: str, value: Any, constructor: set[str]) -> Any:
    if name in INSTEAD:
        raise ValueError(f"{FLAG}: use {INSTEAD[name]} in place of {name!r}")
    if name in NO_ONNX:
        raise ValueError(f"{FLAG}: {name!r} is for ONNX pipelines, which are not served")
    if name not in TAKEN and name not in constructor:
        hint = did_you_mean(name, TAKEN | constructor)
        raise ValueError(f"{FLAG}: from_pretrained has no argument {name!r}{hint}")
    match name:
        case "dtype" | "torch_dtype":
            return _dtype(value)
        case "quantization_config":
            return _quantization(value)
        case "max_memory" if isinstance(value, dict):
            return {int(device) if device.isdecimal() else device: limit for device, limit in value.items()}
    return value


def _dtype(value: Any) -> Any:
    """One for all, or by component."""
    if isinstance(value, dict):
        return {part: _dtype(name) for part, name in value.items()}
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name not in DTYPES:
        raise ValueError(f"{FLAG}: dtype must be one of {', '.join(DTYPES)}, or that by component; got {value!r}")
    return DTYPES[name]


def _quantization(value: Any) -> PipelineQuantizationConfig:
    form = "{'quant_backend': ..., 'quant_kwargs': {...}, 'components_to_quantize': [...]}"
    if not isinstance(value, dict) or "quant_backend" not in value:
        raise ValueError(f"{FLAG}: quantization_config is {form}; for one by method there is --quantization-config")
    try:
        return PipelineQuantizationConfig(**value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{FLAG}: quantization_config {value} is refused: {error}") from error
