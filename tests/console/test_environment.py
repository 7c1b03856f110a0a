from __future__ import annotations

from pathlib import Path

import pytest

from app import __version__
from app.console.environment import report


def test_versions_and_variables_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"OMNI_PORT": "9000", "OMNI_TOKEN": "t0p", "OMNI_API_KEY": "k3y", "HF_TOKEN": "h4f"}.items():
        monkeypatch.setenv(name, text)
    text = report()
    assert f"omni-app {__version__}" in text
    assert "  litestar 2." in text
    assert "  OMNI_PORT=9000" in text
    for secret in ("t0p", "k3y", "h4f"):
        assert secret not in text


def test_a_broken_nvidia_smi_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'no driver' >&2; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    assert "  no driver" in report()
