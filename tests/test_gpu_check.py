"""bench.gpu_check on a machine without a GPU: it runs what a CPU can, says what was not run, and survives a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import gpu_check, gpu_sections
from bench.gpu_finding import Finding

ROOT = Path(__file__).resolve().parent.parent


def test_the_cpu_part(tmp_path: Path) -> None:
    line = [
        "--only",
        "machine",
        "attention",
        "code2wav",
        "policy",
        "text, graphs",
        "--json",
        str(tmp_path / "found.json"),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "bench.gpu_check", *line], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    sections = json.loads((tmp_path / "found.json").read_text())["sections"]
    states = {(name, row["what"]): row["state"] for name, rows in sections.items() for row in rows}
    assert states["attention", "native"] == "ok"
    assert states["code2wav", "qwen2_5_omni on cpu, 8 at once"] == "ok"
    assert states["code2wav", "qwen3_omni_moe on cpu, 1 at once"] == "ok"
    assert states["policy", "pi0 on cpu"] == "ok"
    assert states["policy", "pi0 on an accelerator"] == "not run"
    assert states["machine", "devices"] == states["text, graphs", "CUDA graphs"] == "not run"
    assert "| machine | platform of deploy files | cpu | ok |" in result.stdout


@pytest.mark.parametrize(("code", "told"), [("raise ValueError('wrong')", "wrong"), ("os._exit(3)", "ended with 3")])
def test_a_section_that_dies_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    script = f'import os, sys\nprint(\'finding: {{"what": "a", "result": "b"}}\', flush=True)\n{code}\n'
    (tmp_path / "bench" / "gpu_check.py").write_text(script)
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    first, last = gpu_check._section("machine", 30)
    assert first == Finding("a", "b")
    assert last.state == "failed"
    assert told in last.result


def test_every_section_says_what_it_is_for() -> None:
    assert all(section.__doc__ for section in gpu_sections._SECTIONS.values())
