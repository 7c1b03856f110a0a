"""The real vLLM judges, as far as it is asked."""

from __future__ import annotations

from app.console.judge import engine_problems
from app.settings.resolve import examine


def test_vllm_names_what_it_does_not_take(model: str) -> None:
    wrong = examine({"model": model, "dtype": "float99"}, {}).settings
    [problem] = engine_problems(wrong)
    assert problem.startswith("stage 0 (llm): ")
    assert "--dtype" in problem


def test_what_it_takes_is_no_problem(model: str) -> None:
    right = examine({"model": model, "dtype": "bfloat16", "enforce_eager": "false"}, {}).settings
    assert engine_problems(right) == []
    assert engine_problems(examine({"model": "stub"}, {}).settings) == []
