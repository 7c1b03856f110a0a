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
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from app.cluster.identity import Server
from app.cluster.rundir import RunDir
from tests.servers import wait_for

# Two lines of tests share two cores. Also: the number of threads changes the last bits of what torch computes, and
# tests compare what it does on an engine's thread with what it does on theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

WHOLE_SERVERS = ("faults", "compat", "cluster", "routes/test_metrics.py", "engines/test_worker.py", "console")
"""Tests of real processes against the clock."""
BY_THE_CLOCK = ("pipeline", "realtime", "routes", "engines/omni")
"""Tests whose waits are short ones."""


def _line(place: str) -> str:
    """What runs one after the other: whole servers, which mostly wait; and each folder of the rest, which shares.

    Those with faults are the last line, for whoever has done with the rest.
    """
    if place.startswith("faults"):
        return "faults"
    return "servers" if place.startswith(WHOLE_SERVERS) else place.rpartition("/")[0]


class Lines(LoadScopeScheduling):
    """Lines of tests side by side (`pytest -n 2`). Under pytest 9.2 xdist's own `loadgroup` does not see its groups."""

    def _split_scope(self, nodeid: str) -> str:
        return _line(nodeid.partition("::")[0].removeprefix("tests/"))

    def remove_node(self, node: Any) -> str | None:
        """A worker is gone: the test that it died of, if it did, which is not run again.

        xdist 3.8 also queues the lines that the worker had done; who takes one of them has nothing to do, and the run
        never ends.
        """
        lines = self.assigned_work.pop(node)
        left = {place: line for place, line in lines.items() if not all(line.values())}
        if not left:
            return None
        died = next(test for line in left.values() for test, done in line.items() if not done)
        for line in left.values():
            if died in line:
                line[died] = True
        self.workqueue.update({place: line for place, line in left.items() if not all(line.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return died


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lines:
    return Lines(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole servers come first. What goes by the clock shares two cores with the other line: what fails of it is tried
    once more, and pytest says so."""
    here = Path(__file__).parent
    places = {item: item.path.relative_to(here).as_posix() for item in items}
    for item, place in places.items():
        if place.startswith((*WHOLE_SERVERS, *BY_THE_CLOCK)):
            item.add_marker(pytest.mark.flaky(reruns=1))
    order = {"servers": 0, "faults": 2}
    items.sort(key=lambda item: order.get(_line(places[item]), 1))


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
