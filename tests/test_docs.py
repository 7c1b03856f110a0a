"""What the documents say is true: their commands parse, their links lead somewhere, their tables are current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import cli
from app.console.options import typed_values
from app.settings.resolve import examine

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shell_lines() -> list[str]:
    """Every command line in a fenced sh block, continuation lines joined, comments removed."""
    lines = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    lines.append(" ".join(shlex.split(line, comments=True)) if "'" not in line else line)
    return lines


COMMANDS = [line for line in shell_lines() if re.match(r"(\w+=\S+ )*omni-app ", line)]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("line", COMMANDS)
def test_every_omni_app_line_parses_and_resolves(line: str) -> None:
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if re.match(r"OMNI_\w+=", word))
    name, *arguments = words[words.index("omni-app") + 1 :]
    command = cli.commands[name]
    params = command.make_context(name, list(arguments)).params
    if name in ("serve", "headless", "config"):
        typed = typed_values({key: value for key, value in params.items() if key not in ("headless", "as_json")})
        typed.setdefault("model", params.get("model") or params.get("model_flag"))
        examine({key: value for key, value in typed.items() if key != "model_flag"}, variables, source="flag")


def test_the_granian_line_of_the_readme_is_the_one_that_is_tested() -> None:
    line = next(line for line in shell_lines() if " granian " in line)
    assert line.split(" ", 1)[1] == "granian --interface asgi app:create_app --workers 4"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in shell_lines():
        if line.startswith("make "):
            assert line.split()[1] in targets, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_modules_is_current() -> None:
    subprocess.run([sys.executable, "scripts/structure.py", "--check"], cwd=ROOT, env=dict(os.environ), check=True)


def test_the_python_examples_of_the_readme_are_valid() -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        compile(block, "README.md", "exec")
