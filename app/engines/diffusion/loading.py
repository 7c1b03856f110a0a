"""Loading a pipeline: from the options of a stage and a model on this machine to an object that can be called."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers.utils import logging as diffusers_logging
from safetensors import safe_open

from app.engines.diffusion import custom, dummy, modular, quantize, singlefile
from app.engines.diffusion.auxiliary import auxiliary_encoder
from app.engines.diffusion.checkpoint import INDEX, Checkpoint, find_class, init_parameters, read_checkpoint
from app.engines.diffusion.load_arguments import DTYPES, FLAG, load_arguments
from app.engines.diffusion.memory import check_fits, describe, free_memory, memory_need
from app.engines.diffusion.offload import offload_config
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import compute_device
from app.engines.diffusion.vision_processor import ImageProcessor
from app.engines.diffusion.weight_threads import weight_threads

Say = Callable[[str], None]

_IMAGE_AND_VIDEO = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")
"""Processors that cannot be made without torchvision, of which pipelines use the image half only."""


def load(options: DiffusionOptions, model: str, progress: Say) -> Any:
    """The pipeline at `model`, a directory or file of this machine, on its device unless offload_config() is set.

    `progress` is told what is about to happen, such as how much memory the weights need.

    Raises:
        ValueError: the options are wrong, do not go with this pipeline, or the weights cannot fit; says what to do.
        OSError: a file of the model is missing or broken, in the words of diffusers or transformers.
    """
    diffusers_logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    path = Path(model)
    with tempfile.TemporaryDirectory(prefix="omni-pipeline-") as scratch:
        pipe = _load(options, path, Path(scratch), progress)
    pipe.set_progress_bar_config(disable=True)
    if offload_config(options) is None and getattr(pipe, "hf_device_map", None) is None:
        pipe.to(compute_device(options))
    return pipe


def _load(options: DiffusionOptions, path: Path, scratch: Path, progress: Say) -> Any:
    if path.is_file():
        checkpoint = singlefile.surroundings(path, options.diffusers_load_kwargs.get("config"))
    else:
        if "config" in options.diffusers_load_kwargs:
            raise ValueError(f"{FLAG}: config is for a model that is one file; {path} is a directory")
        stock = path if (path / INDEX).is_file() else modular.lay_out(path, options.model_class_name, scratch)
        checkpoint = read_checkpoint(stock)
    cls = _pipeline_class(options, checkpoint, path)
    arguments = load_arguments(options.diffusers_load_kwargs, init_parameters(cls))
    device = compute_device(options)
    dtype = _dtype(options, arguments, checkpoint, device)
    if options.diffusion_load_format == "dummy":
        progress(f"making {cls.__name__} with random weights in {_name(dtype)} on {device}")
        return dummy.build(checkpoint, cls, _one(dtype), device)
    _check_memory(options, path, arguments, _name(_one(dtype)), device, progress)
    arguments |= {"dtype": dtype}
    if path.is_file() and singlefile.is_whole(path):
        progress(f"loading {cls.__name__} from {path.name}")
        return singlefile.load_whole(path, cls, checkpoint, arguments | _without_guardrails(options, cls, checkpoint))
    arguments |= {"local_files_only": True, "trust_remote_code": options.trust_remote_code}
    arguments |= _without_guardrails(options, cls, checkpoint)
    arguments |= custom.constructor_values(options.custom_pipeline_args, cls)
    arguments |= _quantization(options, arguments, checkpoint)
    with weight_threads(options, arguments) as threads:
        progress(f"loading {cls.__name__} in {_name(dtype)} on {device}, {threads} threads for weight files")
        arguments |= _loaded_apart(options, path, cls, checkpoint, _one(dtype))
        pipe = cls.from_pretrained(checkpoint.directory, **arguments)
    if options.diffusion_load_format == "custom_pipeline":
        custom.set_attributes(pipe, options.custom_pipeline_args)
    return pipe


def _pipeline_class(options: DiffusionOptions, checkpoint: Checkpoint, path: Path) -> Any:
    """DiffusionPipeline for one whose code lies beside its index, which diffusers itself loads or refuses."""
    if options.diffusion_load_format == "custom_pipeline":
        return custom.custom_class(options.custom_pipeline_args, path, options.trust_remote_code)
    name = options.model_class_name or checkpoint.class_name
    return find_class(name) if name else diffusers.DiffusionPipeline


def _dtype(
    options: DiffusionOptions, arguments: dict[str, Any], checkpoint: Checkpoint, device: torch.device
) -> torch.dtype | dict[str, torch.dtype]:
    """That of the options; for auto, float32 on a CPU, else as the denoiser is stored, or bfloat16."""
    given = [arguments.pop(name) for name in ("dtype", "torch_dtype") if name in arguments]
    named = [DTYPES[options.dtype]] if options.dtype != "auto" else []
    if any(dtype != given[0] for dtype in given[1:] + named if given):
        raise ValueError(f"--dtype and {FLAG} name different dtypes; name one")
    if given or named:
        found: torch.dtype | dict[str, torch.dtype] = (given + named)[0]
        return found
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if _stored(checkpoint) == "F16" else torch.bfloat16


def _stored(checkpoint: Checkpoint) -> str:
    """The dtype in the first weight file of the denoiser, as safetensors writes it; "" if that is not known."""
    for name in ("transformer", "unet"):
        for file in sorted(checkpoint.part(name).glob("*.safetensors")):
            with safe_open(file, "pt") as content:
                for tensor in content.keys():  # noqa: SIM118 - no mapping
                    return str(content.get_slice(tensor).get_dtype())
    return ""


def _one(dtype: torch.dtype | dict[str, torch.dtype]) -> torch.dtype:
    return dtype.get("default", torch.float32) if isinstance(dtype, dict) else dtype


def _name(dtype: torch.dtype | dict[str, torch.dtype]) -> str:
    if isinstance(dtype, dict):
        return ", ".join(f"{_name(part)} ({name})" for name, part in dtype.items())
    return str(dtype).removeprefix("torch.")


def _check_memory(
    options: DiffusionOptions,
    path: Path,
    arguments: dict[str, Any],
    dtype: str,
    device: torch.device,
    progress: Say,
) -> None:
    """Weights that are quantized as they are read need less than their headers say: they are not judged."""
    need = memory_need(path, dtype, arguments.get("variant") or "")
    if not need:
        progress("how much memory the weights need is not known: they are not in safetensors files")
        return
    quantized = options.quantization or options.quantization_config or options.diffusion_quantization_config
    note = " before quantization" if quantized else ""
    progress(f"the weights need {describe(need)} in {dtype}{note}")
    if quantized or "quantization_config" in arguments or "device_map" in arguments:
        return
    offloading = offload_config(options)
    layers = offloading is not None and offloading.mode == "layer"
    host = torch.device("cpu")
    for place in {host, device} if offloading else {device}:
        if place == device and layers and device != host:
            continue  # single layers, far smaller than anything that is judged here
        warning = check_fits(need, place, free_memory(place), offloaded=offloading is not None and place != host)
        if warning:
            progress(f"{warning}; it may not go well")


def _without_guardrails(options: DiffusionOptions, cls: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    if not options.no_guardrails:
        return {}
    takes = init_parameters(cls)
    off = {"safety_checker": None, "requires_safety_checker": False, "enable_safety_checker": False}
    return {name: value for name, value in off.items() if name in takes}


def _quantization(options: DiffusionOptions, arguments: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    config = quantize.pipeline_config(options, checkpoint.models())
    if config is None:
        return {}
    if "quantization_config" in arguments:
        raise ValueError(f"quantization_config of {FLAG} and --quantization-config exclude each other; name one")
    return {"quantization_config": config}


def _loaded_apart(
    options: DiffusionOptions, path: Path, cls: Any, checkpoint: Checkpoint, dtype: torch.dtype
) -> dict[str, Any]:
    """Components that from_pretrained is given as objects, by name."""
    parts: dict[str, Any] = {}
    gguf = quantize.gguf_file(options, checkpoint.models())
    if path.is_file():
        gguf = (singlefile.denoiser_name(checkpoint), str(path))
    if gguf is not None:
        parts[gguf[0]] = singlefile.load_denoiser(Path(gguf[1]), gguf[0], checkpoint, dtype)
    if options.auxiliary_text_encoder:
        parts |= auxiliary_encoder(options.auxiliary_text_encoder, cls, checkpoint, dtype)
    if importlib.util.find_spec("torchvision") is None:
        for name, (_, class_name) in checkpoint.components.items():
            if class_name in _IMAGE_AND_VIDEO:
                parts[name] = ImageProcessor.from_pretrained(checkpoint.part(name), local_files_only=True)
    return parts
