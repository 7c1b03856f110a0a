"""Weights in fewer bits: which part of the pipeline by which method, at loading where that saves memory, else after."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import DENOISERS, denoisers, modules

METHODS = {
    "int8": "weights in int8 (torchao)",
    "int8_dynamic": "weights and activations in int8 (torchao)",
    "fp8": "weights in float8, and activations too on GPUs that compute in float8 (torchao)",
    "fp8_storage": "weights rest in float8 and are cast for each layer (diffusers' layerwise casting)",
    "gguf": "one GGUF file as the denoiser: needs `gguf_model`",
    "bitsandbytes": "weights in 4 bits, or 8 with `bits` 8 (bitsandbytes; NVIDIA GPUs)",
}
"""What `method` may be."""

_ALIASES = {"torchao": "int8", "float8": "fp8", "bnb": "bitsandbytes", "layerwise_casting": "fp8_storage"}
_TORCHAO = ("int8", "int8_dynamic", "fp8")
_FP8_COMPUTE = (8, 9)
"""CUDA compute capability of the first GPUs with float8 matrix products."""


class PartQuantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one part is quantized. `ignored_layers`: names of layers, or parts of them, that stay as they are."""

    method: str
    ignored_layers: tuple[str, ...] = ()
    gguf_model: str = ""
    bits: int = 4


def plan(options: DiffusionOptions, components: Iterable[str]) -> dict[str, PartQuantization]:
    """How each part named in `components` is quantized; without a choice by part, the denoisers are.

    Raises:
        ValueError: an unknown method or part, or a wrong value.
    """
    names = list(components)
    config = options.diffusion_quantization_config or options.quantization_config
    if options.quantization:
        config = {**config, "method": options.quantization}
    if not config:
        return {}
    if "method" in config:
        chosen = {name: config for name in names if name in DENOISERS}
    else:
        chosen = {name: given for name, given in config.items() if given is not None}
        if unknown := chosen.keys() - set(names):
            raise ValueError(
                f"quantization: there is no part {', '.join(sorted(unknown))}; parts are {', '.join(sorted(names))}"
            )
    return {name: _part(name, given) for name, given in chosen.items()}


def pipeline_config(options: DiffusionOptions, components: Mapping[str, str]) -> Any:
    """What from_pretrained takes as `quantization_config`, or None if nothing can be quantized while it is read.

    `components`: the library of each part with weights, "diffusers" or "transformers", by its name.

    Raises:
        ValueError: the options are wrong, or the method does not run on this machine.
    """
    mapping = {}
    for name, part in plan(options, components).items():
        library = components[name]
        if part.method in _TORCHAO:
            mapping[name] = _config_class(library, "TorchAoConfig")(
                _torchao(part.method, options.device), modules_to_not_convert=list(part.ignored_layers) or None
            )
        elif part.method == "bitsandbytes":
            mapping[name] = _bitsandbytes(library, part)
    if not mapping:
        return None
    from diffusers import PipelineQuantizationConfig

    return PipelineQuantizationConfig(quant_mapping=mapping)


def gguf_file(options: DiffusionOptions, components: Iterable[str]) -> tuple[str, str] | None:
    """The denoiser that is read from a GGUF file, and that file.

    Raises:
        ValueError: the options are wrong, or name several.
    """
    files = [(name, part.gguf_model) for name, part in plan(options, components).items() if part.method == "gguf"]
    if len(files) > 1:
        raise ValueError('quantization: a GGUF file holds one part; name it, such as {"transformer": {...}}')
    return files[0] if files else None


def quantize_loaded(pipe: Any, options: DiffusionOptions) -> Iterator[str]:
    """Quantize what could not be while it was read (single files, random weights); yields what each part has now.

    Raises:
        ValueError: the options are wrong.
    """
    parts = modules(pipe)
    for name, part in plan(options, parts).items():
        model = parts[name]
        if part.method == "fp8_storage":
            if name not in denoisers(pipe) and not hasattr(model, "enable_layerwise_casting"):
                raise ValueError(f"quantization: {name} is a part of transformers; fp8_storage is for diffusers' parts")
            skipped = part.ignored_layers or None
            model.enable_layerwise_casting(torch.float8_e4m3fn, model.dtype, skip_modules_pattern=skipped)
        elif part.method in _TORCHAO and not _is_quantized(model):
            from torchao.quantization import quantize_

            quantize_(model, _torchao(part.method, str(model.device)), filter_fn=_keeps_out(part.ignored_layers))
        yield f"{name}: {METHODS[part.method].partition(':')[0]}"


def _part(name: str, given: Any) -> PartQuantization:
    if isinstance(given, str):
        given = {"method": given}
    try:
        part = msgspec.convert(given, PartQuantization)
    except msgspec.ValidationError as error:
        raise ValueError(f"quantization of {name}: {error}") from None
    method = part.method.lower().replace("-", "_")
    method = _ALIASES.get(method, method)
    if method not in METHODS:
        known = "; ".join(f"{known} ({what})" for known, what in METHODS.items())
        raise ValueError(f"quantization of {name}: {part.method!r} cannot be had with diffusers; methods are {known}")
    if bool(part.gguf_model) != (method == "gguf"):
        raise ValueError(f"quantization of {name}: gguf_model and the method gguf belong together")
    if part.bits not in (4, 8):
        raise ValueError(f"quantization of {name}: bits must be 4 or 8, got {part.bits}")
    return msgspec.structs.replace(part, method=method)


def _torchao(method: str, device: str) -> Any:
    import torchao.quantization as torchao

    if method == "fp8":
        computes = torch.cuda.is_available() and torch.cuda.get_device_capability() >= _FP8_COMPUTE
        if computes and not device.startswith("cpu"):
            return torchao.Float8DynamicActivationFloat8WeightConfig()
        return torchao.Float8WeightOnlyConfig()
    if method == "int8":
        return torchao.Int8WeightOnlyConfig()
    return torchao.Int8DynamicActivationInt8WeightConfig()


def _bitsandbytes(library: str, part: PartQuantization) -> Any:
    if not torch.cuda.is_available():
        raise ValueError("quantization by bitsandbytes needs an NVIDIA GPU, and there is none here; use int8 or fp8")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError("quantization by bitsandbytes needs the package: pip install bitsandbytes")
    skipped = list(part.ignored_layers) or None
    eight = {"load_in_8bit": True, "llm_int8_skip_modules": skipped}
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    return _config_class(library, "BitsAndBytesConfig")(**(eight if part.bits == 8 else four))


def _config_class(library: str, name: str) -> Any:
    """The two libraries each have a class of that name, for their own models."""
    import diffusers
    import transformers

    return getattr(diffusers if library == "diffusers" else transformers, name)


def _is_quantized(model: torch.nn.Module) -> bool:
    from torchao.utils import TorchAOBaseTensor

    return any(isinstance(tensor, TorchAOBaseTensor) for tensor in model.parameters())


def _keeps_out(ignored: tuple[str, ...]) -> Any:
    return lambda module, name: isinstance(module, torch.nn.Linear) and not any(part in name for part in ignored)
