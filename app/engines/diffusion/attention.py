"""Attention kernels of the denoisers: one for all layers, or one by the role of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from diffusers.models import attention_dispatch as dispatch
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.models.attention_processor import Attention, MochiAttention

from app.engines.diffusion.options import DiffusionOptions

ROLES = ("self", "cross", "joint")

_PEER_NAMES = {
    "torch_sdpa": "native",
    "flash_attn": "flash",
    "flash_attn_hub": "flash_hub",
    "flash_attn_3": "_flash_3",
    "flash_attn_3_hub": "_flash_3_hub",
    "sage_attn": "sage",
    "sage_attn_3": "sage_blackwell_hub",
    "cudnn_attn": "_native_cudnn",
}
"""What vllm-omni calls kernels that diffusers has under another name."""

_RAISED_BY_KERNELS = (RuntimeError, ValueError, TypeError, AssertionError, ImportError, OSError, LookupError)
_PROBE_TOKENS, _PROBE_HEADS, _PROBE_DIM = 128, 2, 64


def set_attention(
    models: Mapping[str, torch.nn.Module], options: DiffusionOptions, device: torch.device
) -> Iterator[str]:
    """Give every attention layer of the denoisers `models` the kernel that the options name; yields what was done.

    A layer's role is "cross" if it looks at the text only, "joint" if text and picture have projections of their own
    and look at each other, else "self".

    Raises:
        ValueError: a kernel is unknown or does not run on this machine, or the models let nobody choose.
    """
    default, by_role = _wanted(options)
    if not default and not by_role:
        return
    for name in {default, *by_role.values()} - {""}:
        _check_runs(_backend(name), name, device)
    for component, model in models.items():
        layers = list(attention_layers(model))
        if not layers:
            raise ValueError(
                f"the attention kernel of {component} ({type(model).__name__}) is fixed by diffusers; remove "
                "--diffusion-attention-backend and --diffusion-attention-config"
            )
        roles = {_role(layer) for layer in layers}
        if missing := by_role.keys() - roles:
            raise ValueError(
                f"--diffusion-attention-config: {component} has no layer of the role {', '.join(sorted(missing))}; "
                f"its roles are {', '.join(sorted(roles))}"
            )
        for layer in layers:
            if chosen := by_role.get(_role(layer), default):
                layer.processor._attention_backend = _backend(chosen)
        said = {role: by_role.get(role, default) or "native" for role in sorted(roles)}
        yield f"attention of {component}: " + ", ".join(f"{role} {name}" for role, name in said.items())


def _wanted(options: DiffusionOptions) -> tuple[str, dict[str, str]]:
    config = options.diffusion_attention_config
    if unknown := config.keys() - {"default", "per_role"}:
        raise ValueError(
            f"--diffusion-attention-config takes default and per_role; it has no {', '.join(sorted(unknown))}"
        )
    by_role = {role: _name(given, f"per_role.{role}") for role, given in (config.get("per_role") or {}).items()}
    for role in by_role.keys() - set(ROLES):
        raise ValueError(f"--diffusion-attention-config: unknown role {role!r}; roles are {', '.join(ROLES)}")
    default = _name(config["default"], "default") if config.get("default") else ""
    return options.diffusion_attention_backend or default, by_role


def _name(given: Any, place: str) -> str:
    """A name, or an object with nothing but `backend`: no kernel here has further settings."""
    if isinstance(given, dict) and given.keys() == {"backend"}:
        given = given["backend"]
    if not isinstance(given, str):
        raise ValueError(
            f"--diffusion-attention-config: {place} must be a name, or an object with `backend` alone; got {given!r}"
        )
    return given


def _backend(name: str) -> AttentionBackendName:
    """The kernel of a name of ours, of diffusers' (a leading _ may be left out) or of vllm-omni's."""
    wanted = _PEER_NAMES.get(name.lower(), name.lower())
    known = {backend.value for backend in AttentionBackendName}
    if found := {wanted, f"_{wanted}"} & known:
        return AttentionBackendName(found.pop())
    raise ValueError(
        f"unknown attention kernel {name!r}; diffusers has {', '.join(sorted(known))}, and these names are taken "
        f"for them: {', '.join(sorted(_PEER_NAMES)).upper()}"
    )


def _check_runs(backend: AttentionBackendName, name: str, device: torch.device) -> None:
    """Packages can be there and the kernel not made for this device: only a call tells."""
    if problem := kernel_problem(backend, device):
        working = [other.value for other in AttentionBackendName if not _is_remote(other)]
        usable = [other for other in working if not kernel_problem(AttentionBackendName(other), device)]
        raise ValueError(
            f"the attention kernel {name} does not run here: {problem}. These do: {', '.join(sorted(usable))}"
        )


def _is_remote(backend: AttentionBackendName) -> bool:
    return str(backend.value).endswith("_hub")


def kernel_problem(backend: AttentionBackendName, device: torch.device) -> str:
    """Why the kernel does not run here, "" if it does."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    shape = (1, _PROBE_TOKENS, _PROBE_HEADS, _PROBE_DIM)
    query, key, value = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(3))
    try:
        dispatch._check_attention_backend_requirements(backend)
        dispatch._maybe_download_kernel_for_backend(backend)
        dispatch.dispatch_attention_fn(query, key, value, backend=backend)
    except _RAISED_BY_KERNELS as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def attention_layers(model: torch.nn.Module) -> Iterator[Any]:
    """The attention layers whose kernel can be chosen."""
    for module in model.modules():
        if isinstance(module, Attention | MochiAttention | AttentionModuleMixin) and hasattr(
            module.processor, "_attention_backend"
        ):
            yield module


def _role(layer: Any) -> str:
    if getattr(layer, "added_kv_proj_dim", None) is not None and not getattr(layer, "is_cross_attention", False):
        return "joint"
    return "cross" if getattr(layer, "is_cross_attention", False) else "self"
