"""Fixtures that several folders use."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.cluster.identity import Server
from app.cluster.rundir import RunDir
from tests.servers import wait_for

WHOLE_SERVERS = ("faults", "compat", "cluster", "routes/test_metrics.py", "engines/test_worker.py", "console")
"""Tests of real processes against the clock."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two lines of tests side by side: whole servers, which mostly wait, one after the other, first; and the rest, a
    folder at a time, for what its tests share. A whole server that fails is tried once more, and pytest says so."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        if place.as_posix().startswith(WHOLE_SERVERS):
            item.add_marker(pytest.mark.flaky(reruns=1))
            item.add_marker(pytest.mark.xdist_group("servers"))
        else:
            item.add_marker(pytest.mark.xdist_group(place.parent.as_posix()))
    items.sort(key=lambda item: item.get_closest_marker("flaky") is None)


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own for the run directories of this test; fails if a master cannot be made to leave.

    pytest's tmp_path is too long for Unix sockets.
    """
    root = Path(tempfile.mkdtemp(prefix="ot", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    monkeypatch.delenv("OMNI_RUN_DIR", raising=False)
    base = root / f"omni-{os.getuid()}"
    yield base
    for lock in base.glob("*/master.lock"):
        _end_master(RunDir(lock.parent, Server(0, 0)))
    shutil.rmtree(root)


def _end_master(run_dir: RunDir) -> None:
    if run_dir.master_alive():
        with suppress(ProcessLookupError):
            os.kill(run_dir.read_state().pid, signal.SIGTERM)
        wait_for(lambda: not run_dir.master_alive(), 15, f"the master of {run_dir.path} to leave")


def pytest_unconfigure() -> None:
    """pytest's closing line is the last one: triton's bindings (nanobind) list at the exit what they have leaked."""
    atexit.register(_silence)


def _silence() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
