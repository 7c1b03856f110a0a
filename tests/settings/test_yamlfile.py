"""Files that are YAML, and yet no deploy file can be made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings.yamlfile import read_mapping


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", f"a: {'[' * 5000}{']' * 5000}\n"])
def test_what_has_no_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match="too deeply"):
        read_mapping(tmp_path / "x.yaml")
