from __future__ import annotations

import json

import pytest

from app.console.dotted import join_dotted


@pytest.mark.parametrize(
    ("typed", "rest", "value"),
    [
        ("demo --hf-overrides.rope.theta 5", ["demo"], {"rope": {"theta": 5}}),
        ("--hf_overrides.a=x --hf-overrides.b true", [], {"a": "x", "b": True}),
        ('--hf-overrides {"a":{"b":1}} --hf-overrides.a.c 2 --port 1', ["--port", "1"], {"a": {"b": 1, "c": 2}}),
        ('--hf-overrides={"a":1} --hf-overrides.a 2', [], {"a": 2}),
    ],
)
def test_parts_become_one_object(typed: str, rest: list[str], value: object) -> None:
    first, *others = join_dotted(typed.split())
    name, _, text = first.partition("=")
    assert (name, others) == ("--hf-overrides", rest)
    assert json.loads(text) == value


def test_short_names_work_and_other_flags_are_left_alone() -> None:
    assert join_dotted(["-cc.mode=none"]) == ['--compilation-config={"mode":"none"}']
    assert join_dotted(["--port.x", "1", "--unknown.x=1"]) == ["--port.x", "1", "--unknown.x=1"]
    assert join_dotted(["--", "--hf-overrides.a", "1"]) == ["--", "--hf-overrides.a", "1"]
