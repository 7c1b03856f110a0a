"""Parts of the pipeline that rest in host memory, or on disk, while others compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from diffusers.hooks import apply_group_offloading
from torch.distributed.fsdp import FSDPModule

from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.parts import denoisers, modules
from app.engines.diffusion.scratch import own_directory

_HOST = torch.device("cpu")
_PREFIX = "omni-layers-"


class LayerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`resident_layers`: the first blocks of a denoiser that stay on the device. `blocks_per_group` move together."""

    resident_layers: int = 0
    blocks_per_group: int = 1


class OffloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What --diffusion-offload-config says.

    `mode` module: a part moves to the device whole; layer: its blocks do, one after another. `components`: which parts
    (empty: all in mode module, in mode layer those that take most of the memory, denoisers and text encoders).
    `pin_memory`: host memory is locked at the start, which makes moves faster, up to `pin_limit_gib` of it.
    `disk_path`: blocks of the denoisers rest on disk, in a directory there that goes when the next replica starts.
    """

    mode: Literal["module", "layer"]
    components: tuple[str, ...] = ()
    layer_options: LayerOptions = LayerOptions()
    pin_memory: bool = True
    pin_limit_gib: float | None = None
    disk_path: str = ""


class PinLimit:
    """How much host memory may still be locked."""

    def __init__(self, config: OffloadConfig) -> None:
        self._left = math.inf if config.pin_limit_gib is None else config.pin_limit_gib * (1 << 30)
        if not config.pin_memory:
            self._left = -1

    def take(self, part: torch.nn.Module) -> bool:
        """Whether the weights of `part` may be locked; from then on they count."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*part.parameters(), *part.buffers()))
        if size > self._left:
            return False
        self._left -= size
        return True


def offload_config(options: DiffusionOptions) -> OffloadConfig | None:
    """What is offloaded, or None. With one, the pipeline must still be in host memory when offload() is called.

    Raises:
        ValueError: the config has an unknown key or a wrong value.
    """
    if options.enable_cpu_offload:
        return OffloadConfig("module")
    if options.enable_layerwise_offload:
        return OffloadConfig("layer")
    if options.enable_distributed_layerwise_offload:
        layers = LayerOptions(options.dlo_resident_layers)
        return OffloadConfig("layer", layer_options=layers, pin_limit_gib=options.dlo_host_registration_limit_gib)
    if not options.diffusion_offload_config:
        return None
    try:
        config = msgspec.convert(options.diffusion_offload_config, OffloadConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"--diffusion-offload-config: {error}") from None
    if config.mode == "module" and (config.disk_path or config.layer_options != LayerOptions()):
        raise ValueError("--diffusion-offload-config: disk_path and layer_options belong to the mode layer")
    if config.disk_path and config.layer_options.resident_layers:
        raise ValueError("--diffusion-offload-config: with disk_path all layers rest on disk; remove resident_layers")
    return config


def offload(pipe: Any, options: DiffusionOptions, device: torch.device) -> Iterator[str]:
    """Install the moves; yields what was done. `device` is where the pipeline computes.

    Raises:
        ValueError: the config is wrong, names parts that the pipeline does not have, or the stage computes in host
            memory, so that nothing would be saved.
    """
    config = offload_config(options)
    if config is None:
        return
    if device.type == "cpu" and not config.disk_path:
        raise ValueError(
            "offloading keeps weights in host memory, and this stage computes there: remove it, or let layers rest on "
            'disk with --diffusion-offload-config \'{"mode": "layer", "disk_path": DIRECTORY}\''
        )
    yield from install(pipe, config, device)


def install(pipe: Any, config: OffloadConfig, device: torch.device) -> Iterator[str]:
    """As offload(), also where it saves nothing.

    Raises:
        ValueError: the config names parts that the pipeline does not have, or that cannot be moved.
    """
    # what ranks share of a part has its place already
    known = {name: part for name, part in modules(pipe).items() if not isinstance(part, FSDPModule)}
    if unknown := set(config.components) - known.keys():
        raise ValueError(
            f"--diffusion-offload-config: the pipeline has no {', '.join(sorted(unknown))}; "
            f"its components are {', '.join(sorted(known))}"
        )
    if config.mode == "module":
        yield _by_module(pipe, config, known, device)
        return
    if config.disk_path:
        # a fresh one: diffusers takes files of the right name for its own, whatever model they are of
        config = msgspec.structs.replace(config, disk_path=str(own_directory(_PREFIX, Path(config.disk_path))))
    chosen = set(config.components) or _heavy(pipe, known, config) & known.keys()
    pins = PinLimit(config)
    for name, part in known.items():
        if name not in chosen:
            part.to(device)
    for name in sorted(chosen):
        yield _by_layer(name, known[name], name in denoisers(pipe), config, device, pins)


def _by_module(pipe: Any, config: OffloadConfig, known: dict[str, torch.nn.Module], device: torch.device) -> str:
    resident = sorted(known.keys() - set(config.components)) if config.components else []
    if resident:
        order = [name for name in pipe.model_cpu_offload_seq.split("->") if name not in resident]
        pipe.model_cpu_offload_seq = "->".join(order)
        pipe._exclude_from_cpu_offload = [*pipe._exclude_from_cpu_offload, *resident]
    pipe.enable_model_cpu_offload(device=device)
    kept = f", except {', '.join(resident)}" if resident else ""
    return f"the pipeline's parts rest in host memory{kept}"


def _heavy(pipe: Any, known: dict[str, torch.nn.Module], config: OffloadConfig) -> set[str]:
    """Autoencoders stay on the device: they are small, and their layers are also called past `forward`."""
    encoders = () if config.disk_path else (name for name in known if name.startswith("text_encoder"))
    return {*denoisers(pipe), *encoders}


def _by_layer(
    name: str, part: Any, is_denoiser: bool, config: OffloadConfig, device: torch.device, pins: PinLimit
) -> str:
    if config.disk_path and not is_denoiser:
        # diffusers writes weights that two layers share once as they are, and once as zeros
        raise ValueError(f"--diffusion-offload-config: only denoisers can rest on disk; {name} is none")
    if getattr(part, "_supports_group_offloading", True) is False:
        raise ValueError(f"--diffusion-offload-config: the layers of {name} ({type(part).__name__}) cannot be moved")
    stream = device.type != "cpu"
    arguments: dict[str, Any] = {
        "onload_device": device,
        "offload_device": _HOST,
        "use_stream": stream,
        # a directory each: the files are named after layers, and parts have layers of equal names
        "offload_to_disk_path": f"{config.disk_path}/{name}" if config.disk_path else None,
    }
    if not is_denoiser:
        arguments["low_cpu_mem_usage"] = stream and not pins.take(part)
        apply_group_offloading(part, offload_type="leaf_level", **arguments)
        return f"the layers of {name} rest {_where(config)}"
    layers = config.layer_options
    if not layers.resident_layers and config.pin_limit_gib is None:
        arguments["low_cpu_mem_usage"] = stream and not pins.take(part)
        groups = layers.blocks_per_group
        apply_group_offloading(part, offload_type="block_level", num_blocks_per_group=groups, **arguments)
        return f"the blocks of {name} rest {_where(config)}"
    resident, moving = _split(name, part, layers.resident_layers)
    for block in moving:
        arguments["low_cpu_mem_usage"] = stream and not pins.take(block)
        apply_group_offloading(block, offload_type="leaf_level", **arguments)
    kept = {id(tensor) for block in moving for tensor in (*block.parameters(), *block.buffers())}
    for tensor in (*part.parameters(), *part.buffers()):
        if id(tensor) not in kept:
            tensor.data = tensor.data.to(device)
    return f"{len(moving)} blocks of {name} rest {_where(config)}, {len(resident)} stay on the device"


def _where(config: OffloadConfig) -> str:
    return f"on disk in {config.disk_path}" if config.disk_path else "in host memory"


def _split(name: str, part: torch.nn.Module, count: int) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
    """The blocks that stay and the blocks that move, in the order of the forward pass."""
    lists = [child for child in part.children() if isinstance(child, torch.nn.ModuleList)]
    blocks = [block for blocks in lists for block in blocks]
    if len(blocks) <= count:
        raise ValueError(
            f"offloading: resident_layers is {count}, and {name} has {len(blocks)} blocks: nothing would move"
        )
    return blocks[:count], blocks[count:]
