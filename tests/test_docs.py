"""Generated pages are current, and the commands that the documentation shows parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import cli
from app.console.options import typed_values
from app.settings.flags import by_key

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("script", "page"), [("flags_doc.py", "docs/flags.md")])
def test_generated_pages_are_current(script: str, page: str) -> None:
    code = f"import {Path(script).stem} as generator; print(generator.page(), end='')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == (ROOT / page).read_text(), f"run scripts/{script}"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCED = re.compile(r"^```(?:sh|shell|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\w+=\S+ )*omni-app ((?:serve|headless|config)\b.*)")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `omni-app` command in a shell block of the documentation, without its comment."""
    for page in PAGES:
        for block in _FENCED.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if match := _COMMAND.match(line.strip()):
                    yield f"{page.name}: {line.strip()}", shlex.split(match[1], comments=True)


@pytest.mark.parametrize(("line", "words"), list(commands()))
def test_commands_in_the_documentation_parse(line: str, words: list[str]) -> None:
    command = cli.commands[words[0]]
    context = command.make_context(words[0], [word for word in words[1:] if word != "&"])
    typed = typed_values(context.params)
    assert [flag for flag in typed if by_key()[flag].status != "works"] == []


def test_the_documentation_shows_commands() -> None:
    assert len(list(commands())) >= 3
