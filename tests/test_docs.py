"""What the documents say is true: their commands parse, their links lead somewhere, generated pages are current."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from app.cli import cli
from app.console.helptext import USAGE
from app.console.options import typed_values
from app.console.plan import graph
from app.settings import platforms
from app.settings.flags import by_key, flags
from app.settings.resolve import examine

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCED = re.compile(r"^```(?:sh|shell|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:\w+=\S+ )*omni-app (\S.*)")
_INLINE = re.compile(r"omni-app [a-z]+(?: [^`'\n]*)?(?=`)|(?<=# )omni-app [^:\n]*(?=:)")


def shell_lines() -> Iterator[str]:
    """Every line in a shell block of the documentation, continued lines joined, comments removed."""
    for page in PAGES:
        for block in _FENCED.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield shlex.join(word for word in words if word != "&")


def other_commands() -> Iterator[str]:
    """The commands in comments of deploy files, in help texts, and in running text of the documentation."""
    texts = [file.read_text() for file in sorted((ROOT / "app" / "deploy").glob("*.yaml"))]
    texts += [page.read_text() for page in PAGES]
    texts += [f"{flag.help} {flag.reason}" for flag in flags()]
    texts += [f"`{example}`" for _, example in USAGE.values()]
    for text in texts:
        for line in _INLINE.findall(text):
            if not re.search(r"[\[…]|\.\.\.|[|>]", line):
                yield line.strip()


FILES = {
    name: block
    for page in PAGES
    for name, block in re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", page.read_text(), re.DOTALL)
}
"""The deploy files of the documentation that begin with their names."""

COMMANDS = [line for line in shell_lines() if _COMMAND.fullmatch(line)]
MENTIONED = sorted(set(other_commands()))


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 4
    assert len(MENTIONED) >= 4


@pytest.mark.parametrize("line", [*COMMANDS, *MENTIONED])
def test_commands_parse_and_use_only_what_works(line: str) -> None:
    match = _COMMAND.fullmatch(line)
    assert match
    name, *arguments = shlex.split(match[1])
    try:
        params = cli.commands[name].make_context(name, arguments).params
    except click.exceptions.Exit:
        assert "--help" in line
    else:
        assert [flag for flag in typed_values(params) if by_key()[flag].status != "works"] == []


@pytest.mark.parametrize("line", [line for line in COMMANDS if re.search(r"omni-app (serve|headless|config) \S", line)])
def test_commands_resolve(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if re.match(r"OMNI_\w+=", word))
    name, *arguments = words[words.index("omni-app") + 1 :]
    params = cli.commands[name].make_context(name, arguments).params
    monkeypatch.chdir(tmp_path)
    for file, content in FILES.items():
        Path(file).write_text(content)
    examine({**typed_values(params), "model": params["model"] or params["model_flag"]}, variables, source="flag")


def test_deploy_files_and_strategies_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "llm.yaml").write_text("stages: [{stage_id: 0}]")
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        file = tmp_path / "x.yaml"
        file.write_text(block)
        kind = "strategy_config" if block.startswith("strategies:") else "deploy_config"
        examine({"model": str(tmp_path), kind: str(file)}, {})


def test_the_drawing_of_a_pipeline_is_what_config_prints(tmp_path: Path) -> None:
    file = tmp_path / "talking.yaml"
    file.write_text(FILES["talking.yaml"])
    page = (ROOT / "docs" / "pipelines.md").read_text()
    assert [line for line in graph(examine({"deploy_config": str(file)}, {}).settings) if line not in page] == []


def test_the_drawing_of_an_omni_model_is_what_config_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current", lambda: "cuda")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_omni", "talker_config": {}}')
    page = (ROOT / "docs" / "omni.md").read_text()
    assert [line for line in graph(examine({"model": str(tmp_path)}, {}).settings) if f"#   {line}\n" not in page] == []


def test_the_granian_line_of_the_readme_is_the_one_that_is_tested() -> None:
    line = next(line for line in shell_lines() if " granian " in line)
    assert line.split(" ", 1)[1] == "granian --interface asgi app:create_app --workers 4"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for line in shell_lines() if line.startswith("make ")}
    assert named
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(("script", "page"), [("flags_doc.py", "flags.md"), ("structure.py", "structure.md")])
def test_generated_pages_are_current(script: str, page: str) -> None:
    code = f"import {Path(script).stem} as generator; print(generator.page(), end='')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == (ROOT / "docs" / page).read_text(), f"run scripts/{script}"


def test_the_python_examples_of_the_readme_are_valid() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
