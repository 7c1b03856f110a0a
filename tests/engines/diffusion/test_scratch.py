"""Directories of killed processes go, those of living ones stay, wherever they live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.cluster.locks import Lock
from app.engines.diffusion.scratch import own_directory

OWNER = """
import sys
from pathlib import Path
from app.engines.diffusion.scratch import own_directory
print(own_directory("omni-x-", Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "part").mkdir()
        mine = own_directory("omni-x-", tmp_path)
        assert {theirs, mine} == set(tmp_path.iterdir())
        owner.kill()
        owner.wait()
        again = own_directory("omni-x-", tmp_path)
    assert {mine, again} == set(tmp_path.iterdir())


def test_who_has_no_pid_here_may_live_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "omni-x-999999999-y"
    other = tmp_path / "omni-x-mine"
    for path in (elsewhere, other):
        path.mkdir()
    lock = Lock(elsewhere / ".lock")
    assert lock.try_exclusive()
    mine = own_directory("omni-x-", tmp_path)
    assert {elsewhere, other, mine} == set(tmp_path.iterdir())
    lock.close()
    mine_too = own_directory("omni-x-", tmp_path)
    assert {other, mine, mine_too} == set(tmp_path.iterdir())
