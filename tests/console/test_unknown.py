from __future__ import annotations

import shlex

import click
import pytest

from app.cli import cli
from app.console.unknown import UnknownOptionsError


def problems(line: str) -> list[str]:
    name, *words = shlex.split(line)
    try:
        cli.commands[name].make_context(name, words)
    except UnknownOptionsError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "serve demo --prot 1 --workes=2",
            ["there is no flag --prot (did you mean --port?)", "--workes (did you mean"],
        ),
        (
            "serve demo --prot 1 --port 99999999 --dtype wrong --workers x",
            [
                "there is no flag --prot",
                "port",
                "workers",
                "stage 1 (speech): dtype must be auto",
                "stage 2 (picture): dtype must be auto",
            ],
        ),
        ("serve --prot 1 ./absent --workers 0", ["there is no flag --prot", "workers", "absent"]),
        ("serve demo --stage-0-devices 0", ["there is no flag --stage-0-devices"]),
        ("headless demo --workers 2 -x", ["--workers belongs to `omni-app serve`", "there is no flag -x"]),
        ("headless demo --port 1", ["--port belongs to `omni-app serve`"]),
    ],
)
def test_all_are_told_at_once(line: str, told: list[str]) -> None:
    found = problems(line)
    assert len(found) == len(told)
    for problem, part in zip(found, told, strict=True):
        assert part in problem


@pytest.mark.parametrize(
    "line",
    [
        "serve demo --seed -1 --chat-template --x",  # values that look like options
        "serve demo --max_num_seqs=3 --no-enforce-eager -tp 2",
        "serve demo -- --x",
        "serve demo --api-key a b --port 1",
        "serve demo --hf-overrides.a.b 1 -cc.mode=none",
    ],
)
def test_what_is_an_option_and_what_is_not(line: str) -> None:
    try:
        assert problems(line) == []
    except click.UsageError as error:
        assert "unexpected extra argument" in str(error)  # noqa: PT017 - what follows -- is no option
