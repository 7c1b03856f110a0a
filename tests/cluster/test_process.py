"""Child processes run our package, and end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cluster.process import PACKAGE, python_command
from tests.servers import ROOT, wait_for

WHERE = """
import multiprocessing, sys
import app, app.cluster.rundir
def report(): print("child", app.__file__, flush=True)
if __name__ == "__main__":
    print("main", app.__file__, app.cluster.rundir.__file__, sys.argv[1:], flush=True)
    child = multiprocessing.get_context("spawn").Process(target=report)
    child.start(); child.join(30); sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("kind", ["module", "package"])
@pytest.mark.parametrize("through", ["cwd", "PYTHONPATH"])
def test_users_own_app_is_not_taken_for_ours(tmp_path: Path, kind: str, through: str) -> None:
    wrong = tmp_path / "app.py" if kind == "module" else tmp_path / "app" / "__init__.py"
    wrong.parent.mkdir(exist_ok=True)
    wrong.write_text("raise SystemExit('the wrong app')")
    (tmp_path / "where.py").write_text(WHERE)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if through == "cwd":  # -P keeps the cwd out of sys.path, so the probing module needs a place of its own
        (tmp_path / "lib").mkdir()
        (tmp_path / "where.py").rename(tmp_path / "lib" / "where.py")
        env["PYTHONPATH"] = str(tmp_path / "lib")
    command = python_command("where", "one", "two words")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    main, child = done.stdout.splitlines()
    assert main == f"main {PACKAGE}/__init__.py {PACKAGE}/cluster/rundir.py ['one', 'two words']"
    assert child == f"child {PACKAGE}/__init__.py"


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, sys, time
from app.cluster import process
process.PARENT_GRACE_S = 1.0
process.die_with_parent(int(sys.argv[1]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "child", [STUBBORN, STUBBORN.replace("signal.SIG_IGN", "signal.SIG_DFL")], ids=["stubborn", "meek"]
)
def test_child_ends_with_its_parent_even_against_its_will(child: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, child], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait(10)
    wait_for(lambda: not _runs(pid), 5, "the child to end")


def test_child_of_a_dead_parent_does_not_begin() -> None:
    code = "from app.cluster.process import die_with_parent; die_with_parent(1 << 22); print('began')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
