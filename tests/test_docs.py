"""Pages that are generated are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("script", "page"), [("flags_doc.py", "docs/flags.md")])
def test_generated_pages_are_current(script: str, page: str) -> None:
    code = f"import {Path(script).stem} as generator; print(generator.page(), end='')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == (ROOT / page).read_text(), f"run scripts/{script}"
