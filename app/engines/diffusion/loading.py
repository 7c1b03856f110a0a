"""Loading a pipeline: from the options of a stage and a model on this machine to an object that can be called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import torch
import transformers
from diffusers.utils import logging as diffusers_logging

from app.engines.device import compute_device
from app.engines.diffusion import custom, dummy, memory, modular, quantize, singlefile
from app.engines.diffusion.auxiliary import auxiliary_encoder
from app.engines.diffusion.checkpoint import INDEX, Checkpoint, find_class, init_parameters, read_checkpoint
from app.engines.diffusion.load_arguments import FLAG, load_arguments
from app.engines.diffusion.offload import offload_config
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import modules
from app.engines.diffusion.precision import Dtypes, choose_dtype, default_of, name_of
from app.engines.diffusion.scratch import passing_directory
from app.engines.diffusion.siblings import class_for
from app.engines.diffusion.vision_processor import ImageProcessor
from app.engines.diffusion.weight_threads import weight_threads

Say = Callable[[str], None]

_IMAGE_AND_VIDEO = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")
"""Processors that cannot be made without torchvision, of which pipelines use the image half only."""


class _Plan(msgspec.Struct, frozen=True):
    """Everything that is known before a weight is read.

    `rank`: which one of the stage's ranks this is. `whole`: the one file that the model is, where it holds more than a
    denoiser. `files`: components that are a file of their own, by name.
    """

    options: DiffusionOptions
    rank: int
    checkpoint: Checkpoint
    cls: Any
    arguments: dict[str, Any]
    dtype: Dtypes
    device: torch.device
    whole: Path | None
    files: dict[str, Path]


def load(options: DiffusionOptions, model: str, progress: Say, *, rank: int = 0) -> Any:
    """The pipeline at `model`, a directory or file of this machine, on its device unless offload_config() is set.

    `progress` is told what is about to happen, such as how much memory the weights need.

    Raises:
        ValueError: the options are wrong, do not go with this pipeline, or the weights cannot fit; says what to do.
        OSError: a file of the model is missing or broken, in the words of diffusers or transformers.
    """
    diffusers_logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    with passing_directory("omni-pipeline-") as scratch:
        plan = _plan(options, Path(model), scratch, rank)
        pipe = _dummy(plan, progress) if options.diffusion_load_format == "dummy" else _from_files(plan, progress)
    if options.diffusion_load_format == "custom_pipeline":
        custom.set_attributes(pipe, options.custom_pipeline_args)
    pipe.set_progress_bar_config(disable=True)
    if offload_config(options) is None and getattr(pipe, "hf_device_map", None) is None:
        _move(pipe, plan.device)
    return pipe


def _move(pipe: Any, device: torch.device) -> None:
    """To the device, but for parts whose weights come when they have been split over ranks."""
    parts = modules(pipe).values()
    if not any(parameter.is_meta for part in parts for parameter in part.parameters()):
        pipe.to(device)
        return
    for part in parts:
        if not any(parameter.is_meta for parameter in part.parameters()):
            part.to(device)


def _plan(options: DiffusionOptions, path: Path, scratch: Path, rank: int) -> _Plan:
    checkpoint = _checkpoint(options, path, scratch)
    cls = _pipeline_class(options, checkpoint, path)
    arguments = load_arguments(options.diffusers_load_kwargs, init_parameters(cls))
    device = compute_device(options.device)
    dtype = choose_dtype(options.dtype, arguments, checkpoint, device)
    whole = path if path.is_file() and singlefile.is_whole(path) else None
    files = {}
    if gguf := quantize.gguf_file(options, checkpoint.models()):
        files[gguf[0]] = Path(gguf[1])
    if path.is_file() and whole is None:
        files[singlefile.denoiser_name(checkpoint)] = path
    return _Plan(options, rank, checkpoint, cls, arguments, dtype, device, whole, files)


def _checkpoint(options: DiffusionOptions, path: Path, scratch: Path) -> Checkpoint:
    config = options.diffusers_load_kwargs.get("config")
    if path.is_file():
        return singlefile.surroundings(path, config)
    if config is not None:
        raise ValueError(f"{FLAG}: config is for a model that is one file; {path} is a directory")
    if (path / INDEX).is_file():
        return read_checkpoint(path)
    return read_checkpoint(modular.lay_out(path, options.model_class_name, scratch))


def _pipeline_class(options: DiffusionOptions, checkpoint: Checkpoint, path: Path) -> Any:
    """DiffusionPipeline for one whose code lies beside its index, which diffusers itself loads or refuses."""
    if options.diffusion_load_format == "custom_pipeline":
        return custom.custom_class(options.custom_pipeline_args, path, options.trust_remote_code)
    name = options.model_class_name or checkpoint.class_name
    cls = find_class(name) if name else diffusers.DiffusionPipeline
    return class_for(options.task_type, cls, checkpoint.parameters) if options.task_type else cls


def _dummy(plan: _Plan, progress: Say) -> Any:
    device = plan.device if offload_config(plan.options) is None else torch.device("cpu")
    progress(f"making {plan.cls.__name__} with random weights in {name_of(plan.dtype)} on {device}")
    return dummy.build(plan.checkpoint, plan.cls, default_of(plan.dtype), device)


def _from_files(plan: _Plan, progress: Say) -> Any:
    _judge_memory(plan, progress)
    arguments = plan.arguments | _without_guardrails(plan) | _quantization(plan)
    arguments |= custom.constructor_values(plan.options.custom_pipeline_args, plan.cls)
    with weight_threads(plan.options, arguments) as threads:
        where = f"in {name_of(plan.dtype)} on {plan.device}"
        progress(f"loading {plan.cls.__name__} {where}, {threads} threads for weight files")
        arguments |= _loaded_apart(plan)
        if plan.whole is not None:
            return singlefile.load_whole(plan.whole, plan.cls, plan.checkpoint, arguments, default_of(plan.dtype))
        return plan.cls.from_pretrained(
            plan.checkpoint.directory,
            dtype=plan.dtype,
            local_files_only=True,
            trust_remote_code=plan.options.trust_remote_code,
            **arguments,
        )


def _judge_memory(plan: _Plan, progress: Say) -> None:
    """Weights that are quantized as they are read need less than their headers say: they are not judged."""
    options, dtype = plan.options, name_of(default_of(plan.dtype))
    variant = plan.arguments.get("variant") or ""
    need = memory.memory_need(plan.whole or plan.checkpoint.directory, dtype, variant)
    for name, file in plan.files.items():
        need[name] = sum(memory.memory_need(file, dtype).values())
    if not need:
        progress("how much memory the weights need is not known: they are not in safetensors files")
        return
    quantized = options.quantization or options.quantization_config or options.diffusion_quantization_config
    progress(f"the weights need {memory.describe(need)} in {dtype}{' before quantization' if quantized else ''}")
    if quantized or plan.arguments.keys() & {"quantization_config", "device_map"}:
        return
    config = offload_config(options)
    for warning in memory.judge(need, plan.device, config.mode if config else ""):
        progress(f"{warning}; it may not go well")


def _without_guardrails(plan: _Plan) -> dict[str, Any]:
    if not plan.options.no_guardrails:
        return {}
    takes = init_parameters(plan.cls)
    off = {"safety_checker": None, "requires_safety_checker": False, "enable_safety_checker": False}
    return {name: value for name, value in off.items() if name in takes}


def _quantization(plan: _Plan) -> dict[str, Any]:
    """One file is read without; app.engines.diffusion.quantize does it afterwards."""
    config = quantize.pipeline_config(plan.options, plan.checkpoint.models())
    if config is None or plan.whole is not None:
        return {}
    if "quantization_config" in plan.arguments:
        raise ValueError(f"quantization_config of {FLAG} and --quantization-config exclude each other; name one")
    return {"quantization_config": config}


def _loaded_apart(plan: _Plan) -> dict[str, Any]:
    """Components that the pipeline is given as objects, by name."""
    checkpoint, dtype = plan.checkpoint, default_of(plan.dtype)
    parts: dict[str, Any] = {
        name: singlefile.load_denoiser(file, name, checkpoint, dtype) for name, file in plan.files.items()
    }
    if plan.options.use_hsdp or plan.options.text_encoder_tp_size > 1:
        from app.engines.diffusion.ranks.weights import read_in_part

        parts |= read_in_part(plan.options, checkpoint, dtype, plan.rank)
    if plan.options.auxiliary_text_encoder:
        parts |= auxiliary_encoder(plan.options.auxiliary_text_encoder, plan.cls, checkpoint, dtype)
    if importlib.util.find_spec("torchvision") is None:
        for name, (_, class_name) in checkpoint.components.items():
            if class_name in _IMAGE_AND_VIDEO:
                parts[name] = ImageProcessor.from_pretrained(checkpoint.part(name), local_files_only=True)
    return parts
