"""Where the demo's picture model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.demo import picture
from app.demo.text import DemoUnavailableError


def test_missing_weights_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "__file__", str(tmp_path / "picture.py"))
    with pytest.raises(DemoUnavailableError, match="train_t2i"):
        picture.demo_picture_model()
