from __future__ import annotations

import pytest

from app.demo.text import DemoUnavailableError
from app.demo.voice import demo_voice


def test_the_voice_is_in_the_wheel() -> None:
    assert (demo_voice() / "hibari.onnx").is_file()


def test_a_missing_wheel_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.demo.voice._PACKAGE", "no_such_package")
    with pytest.raises(DemoUnavailableError, match=r"is not installed: pip install 'omni-app\[demo\]'"):
        demo_voice()
    monkeypatch.setattr("app.demo.voice._PACKAGE", "json")  # a package without the files
    with pytest.raises(DemoUnavailableError, match="is not installed"):
        demo_voice()
