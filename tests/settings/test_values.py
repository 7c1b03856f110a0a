from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.settings.values import ValueKind, parse


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("str", 5, "5"),
        ("int", " 12 ", 12),
        ("float", "0.5", 0.5),
        ("float", 2, 2.0),
        ("bool", "Yes", True),
        ("bool", "0", False),
        ("bool", False, False),
        ("count", "32k", 32_000),
        ("count", "32K", 32_768),
        ("count", "1.5k", 1500),
        ("count", "auto", "auto"),
        ("count", "-1", -1),
        ("size", "512MiB", 512 << 20),
        ("size", "1GB", 1_000_000_000),
        ("size", "1G", 1 << 30),
        ("size", 7, 7),
        ("json", '{"a": [1]}', {"a": [1]}),
        ("json", {"a": 1}, {"a": 1}),
        ("list", "a, b c", ["a", "b", "c"]),
        ("list", '["a", {"name": "x"}]', ["a", '{"name":"x"}']),
        ("list", '{"name": "x", "path": "/p"}', ['{"name": "x", "path": "/p"}']),
        ("list", ("a,b",), ["a,b"]),
    ],
)
def test_parses(kind: ValueKind, given: object, expected: Any) -> None:
    assert parse(kind, given) == expected


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("str", True, "expected text, got True"),
        ("str", None, "expected text, got nothing"),
        ("int", "1.5", "expected a whole number, got '1.5'"),
        ("int", True, "expected a whole number"),
        ("float", "nan", "expected a number, got 'nan'"),
        ("float", "inf", "expected a number"),
        ("bool", "maybe", "expected true or false"),
        ("count", "many", "expected a number such as 4096, 32k or 2GiB, got 'many'"),
        ("size", 1.5, "expected a number such as"),
        ("json", "{", "expected JSON"),
        ("json", "@/nowhere.json", "cannot read /nowhere.json"),
        ("list", 3.5j, "expected text"),
    ],
)
def test_refuses(kind: ValueKind, given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(kind, given)


def test_json_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"0": {"seed": 1}}')
    assert parse("json", f"@{file}") == {"0": {"seed": 1}}
    file.write_text("{")
    with pytest.raises(ValueError, match=r"expected JSON in .*x\.json"):
        parse("json", f"@{file}")
