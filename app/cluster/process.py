"""Child processes that run our own package, whatever `app` the user's working directory or PYTHONPATH holds."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from app.cluster.identity import Server

PACKAGE = Path(__file__).resolve().parent.parent
PARENT_POLL_S = 0.5
PARENT_GRACE_S = 5.0
"""What a process has to end itself in order once its parent is dead; then its process group is killed."""

_PR_SET_PDEATHSIG = 1

# Loads the package by its path. Only if sys.path would find another `app` first is ours put in front of it: processes
# that the child spawns with multiprocessing inherit sys.path and nothing else.
_LOADER = """\
import importlib.machinery, importlib.util, os, runpy, sys
package, module = sys.argv[1:3]
init = os.path.join(package, "__init__.py")
found = importlib.machinery.PathFinder.find_spec("app")
if found is None or not found.origin or os.path.realpath(found.origin) != init:
    sys.path.insert(0, os.path.dirname(package))
spec = importlib.util.spec_from_file_location("app", init, submodule_search_locations=[package])
sys.modules["app"] = loaded = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def python_command(module: str, *args: str) -> list[str]:
    """The command line that runs `module` of this package as `__main__` with `args`, in this interpreter."""
    return [sys.executable, "-P", "-c", _LOADER, str(PACKAGE), module, *args]


def spawn_detached(module: str, *args: str) -> subprocess.Popen[bytes]:
    """Start `module` in a session of its own: it outlives this process, and Ctrl-C does not reach it.

    What it prints goes to our standard error.
    """
    return subprocess.Popen(
        python_command(module, *args), stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True
    )


def spawn_master(run_dir: Path, server: Server) -> subprocess.Popen[bytes]:
    """Start the master of a run directory."""
    return spawn_detached("app.cluster.master", str(run_dir), str(server.pid), str(server.ticks))


def spawn_undertaker(run_dir: Path, server: Server) -> subprocess.Popen[bytes]:
    """Start the process that keeps a recorded failure until the server has ended, then removes its directory."""
    return spawn_detached("app.cluster.undertaker", str(run_dir), str(server.pid), str(server.ticks))


def signal_on_parent_death(signum: signal.Signals) -> None:
    """Have the kernel send `signum` to this process when the thread that started it ends. Linux only; else nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Make sure that this process does not outlive `parent_pid`: SIGTERM at once, after a grace period SIGKILL.

    Call it first in a child that leads its own process group; the whole group is killed. Exits if the parent is dead
    already.
    """
    signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != parent_pid:
        os._exit(1)
    threading.Thread(target=_kill_group_after, args=(parent_pid,), name="omni-parent-watch", daemon=True).start()


def _kill_group_after(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    time.sleep(PARENT_GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
