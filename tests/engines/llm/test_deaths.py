"""Whatever is killed: no EngineCore survives its replica, no request waits for a dead EngineCore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@contextmanager
def host(what: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.llm.host", what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"host"'):
            words: dict[str, Any] = json.loads(line)["host"]
            return words
    raise AssertionError(f"the host ended with {process.wait()}")


def dies(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("what", ["wait", "spawn"], ids=["forked EngineCore", "spawned child of vLLM"])
def test_kill_of_the_host_takes_the_child_along(what: str) -> None:
    with host(what) as process:
        core = hear(process)["core"]
        assert not dies(core, 0.3)
        process.kill()
        assert dies(core, 5)


def test_death_of_engine_core_fails_requests_and_health() -> None:
    with host("lose-core") as process:
        hear(process)
        report = hear(process)
    assert report["failed"] == [[503, "engine_dead"]] * 6
    assert report["seconds"] < 5
    assert report["after"] == 503
    assert report["health"] == "EngineDeadError"


def test_stop_leaves_no_child_and_does_not_signal_the_replica() -> None:
    with host("stop") as process:
        core = hear(process)["core"]
        assert hear(process) == {"children": 0, "signals": []}
        assert dies(core, 1)
