"""The examples of docs/speech.md, run as they stand but for the port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT, Server

PAGE = (ROOT / "docs" / "speech.md").read_text()
COMMANDS = re.findall(r"^curl (?:.*\\\n)*.*", PAGE, re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(server: Server, text: str, directory: Path, *command: str) -> bytes:
    text = text.replace("http://127.0.0.1:8091", server.url)
    return subprocess.run([*command, text], cwd=directory, capture_output=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(voice: Server, tmp_path: Path, line: str) -> None:
    out = run(voice, line.replace("curl ", "curl --fail -s "), tmp_path, "sh", "-c")
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    if " -o " in line:
        assert [len(file) > 5000 for file in files] == [True]
    else:
        assert b"speech.audio.done" in out or b'"succeeded":2' in out


def test_there_are_examples() -> None:
    assert (len(COMMANDS), len(PROGRAMS)) == (4, 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(voice: Server, tmp_path: Path, program: str) -> None:
    run(voice, program, tmp_path, sys.executable, "-c")
    assert len((tmp_path / "speech.mp3").read_bytes()) > 5000
