"""CPU trims apply on a CPU build, where the user left something open, and nowhere else."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from app.engines.llm import startup
from app.engines.llm.startup import StartPlan


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_build(cpu: bool) -> None:
        monkeypatch.setattr(startup, "is_cpu_build", lambda: cpu)

    return set_build


def environment(plan: StartPlan, monkeypatch: pytest.MonkeyPatch, **before: str) -> dict[str, str]:
    environ = dict(before)
    monkeypatch.setattr(startup.os, "environ", environ)
    plan.prepare()
    return environ


def test_nothing_of_it_reaches_cuda(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build(cpu=False)
    plan = StartPlan({})
    assert plan.defaults() == {}
    environ = environment(plan, monkeypatch)
    assert environ.pop("VLLM_WORKER_MULTIPROC_METHOD") == "spawn"
    assert environ == {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def test_cpu_runs_one_eager_process(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build(cpu=True)
    plan = StartPlan({})
    assert plan.defaults() == {"distributed_executor_backend": "uni", "enforce_eager": True}
    environ = environment(plan, monkeypatch)
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["TORCH_COMPILE_DISABLE"] == "1"
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_variables_that_are_set_stay(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build(cpu=True)
    environ = environment(StartPlan({}), monkeypatch, OMP_NUM_THREADS="7", TORCH_COMPILE_DISABLE="0")
    assert environ["OMP_NUM_THREADS"] == "7"
    assert environ["TORCH_COMPILE_DISABLE"] == "0"


@pytest.mark.parametrize("name", ["tensor_parallel_size", "distributed_executor_backend", "data_parallel_size"])
def test_chosen_parallelism_is_left_to_vllm(build: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    build(cpu=True)
    plan = StartPlan({name: 2})
    assert plan.defaults() == {"enforce_eager": True}
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment(plan, monkeypatch)


@pytest.mark.parametrize("name", ["enforce_eager", "compilation_config", "optimization_level"])
def test_chosen_compilation_is_left_to_vllm(build: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    build(cpu=True)
    plan = StartPlan({name: 0})
    assert "enforce_eager" not in plan.defaults()
    assert "TORCH_COMPILE_DISABLE" not in environment(plan, monkeypatch)


def test_this_machine_has_a_cpu_build() -> None:
    import torch

    assert startup.is_cpu_build() == (torch.version.cuda is None)


def test_vllm_says_as_much_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(StartPlan({}), monkeypatch, VLLM_LOGGING_LEVEL="INFO")["VLLM_LOGGING_LEVEL"] == "INFO"
    assert environment(StartPlan({}, "trace"), monkeypatch, VLLM_LOGGING_LEVEL="INFO")["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_sockets_go_to_the_scratch_directory_where_their_names_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(StartPlan({}, scratch="/run/omni/x"), monkeypatch)["VLLM_RPC_BASE_PATH"] == "/run/omni/x"
    assert "VLLM_RPC_BASE_PATH" not in environment(StartPlan({}, scratch="/run/" + "x" * 80), monkeypatch)


def test_the_class_that_is_imported_is_the_one_that_vllm_will_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Recogniser"]}')
    for overrides, expected in (({}, ["Recogniser"]), ({"architectures": ["Aligner"]}, ["Aligner"])):
        assert startup._architectures(Namespace(model=str(tmp_path), hf_overrides=overrides)) == expected
