"""Writes the table of modules in docs/structure.md from the modules' own first lines. `--check` only compares."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "structure.md"
MARK = "<!-- scripts/structure.py writes this table; tests/test_docs.py fails when it is old -->\n"


def first_sentence(path: Path) -> str:
    """The first line of the module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def table() -> str:
    """One row a module that says something of itself."""
    modules = [(path.relative_to(ROOT), first_sentence(path)) for path in sorted((ROOT / "app").rglob("*.py"))]
    rows = [f"| `{path}` | {sentence} |" for path, sentence in modules if sentence]
    return "\n".join(["| module | what it is |", "|---|---|", *rows]) + "\n"


def page() -> str:
    """The page with a fresh table."""
    return PAGE.read_text().partition(MARK)[0] + MARK + "\n" + table()


def main() -> int:
    fresh = page()
    if fresh == PAGE.read_text():
        return 0
    if "--check" in sys.argv:
        print("docs/structure.md is old: run python scripts/structure.py")
        return 1
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
